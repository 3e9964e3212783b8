"""`SyncProducer`: a `Producer` for programs without an event loop."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from laneway.producer.board import JobStatus
from laneway.producer.client import Producer
from laneway.producer.dead_letters import DeadLetter
from laneway.producer.errors import ProducerClosed
from laneway.producer.fields import JobFields
from laneway.producer.submitting import Submitted, TokenCounter
from laneway.schemas.cards import WorkerCard
from laneway.schemas.errors import UsageError
from laneway.schemas.events import Event
from laneway.schemas.outcome import Result
from laneway.schemas.state import JobState

_T = TypeVar("_T")


class SyncProducer:
    """The methods of `Producer`, blocking. Any thread may call them; they run on one event loop in a thread of its own.

    Use it in a `with` block. It does not survive a fork: make one per process.
    """

    def __init__(
        self,
        redis_url: str | None = None,
        *,
        namespace: str | None = None,
        count_tokens: TokenCounter | None = None,
        producer: Producer | None = None,
        **settings: Any,
    ) -> None:
        """As `Producer`; or around an unused one, such as a `FakeProducer`. Raises `InvalidSettings`."""
        self._producer = producer or Producer(
            redis_url, namespace=namespace, count_tokens=count_tokens, **settings
        )
        self._process = os.getpid()
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="laneway producer", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        try:
            self.open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> None:
        """See `Producer.open`."""
        self._do(self._producer.open())

    def close(self) -> None:
        """Give up connections and end the thread. Safe to call twice."""
        if self._closed:
            return
        try:
            self._do(self._producer.close())
        finally:
            self._closed = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def submit(self, **fields: Unpack[JobFields]) -> Submitted:
        """See `Producer.submit`."""
        return self._do(self._producer.submit(**fields))

    def submit_many(
        self, jobs: Iterable[JobFields], *, full_wait_s: float | None = None
    ) -> Iterator[Submitted]:
        """See `Producer.submit_many`. `jobs` is iterated in the producer's thread."""
        return self._iterate(self._producer.submit_many(jobs, full_wait_s=full_wait_s))

    def result(self, job_id: str, timeout: float | None = None) -> Result:
        """See `Producer.result`."""
        return self._do(self._producer.result(job_id, timeout))

    def stream(self, job_id: str) -> Iterator[Event]:
        """See `Producer.stream`."""
        return self._iterate(self._producer.stream(job_id))

    def status(self, job_id: str) -> JobStatus:
        """See `Producer.status`."""
        return self._do(self._producer.status(job_id))

    def workers(self) -> list[WorkerCard]:
        """See `Producer.workers`."""
        return self._do(self._producer.workers())

    def cancel(self, job_id: str) -> JobState:
        """See `Producer.cancel`."""
        return self._do(self._producer.cancel(job_id))

    def dead_letters(
        self, model: str | None = None, *, error: str | None = None, older_s: float | None = None
    ) -> Iterator[DeadLetter]:
        """See `Producer.dead_letters`."""
        return self._iterate(self._producer.dead_letters(model, error=error, older_s=older_s))

    def dead_letter(self, letter_id: str) -> DeadLetter:
        """See `Producer.dead_letter`."""
        return self._do(self._producer.dead_letter(letter_id))

    def replay(self, letter: DeadLetter) -> Submitted:
        """See `Producer.replay`."""
        return self._do(self._producer.replay(letter))

    def purge(self, letters: Iterable[DeadLetter]) -> int:
        """See `Producer.purge`."""
        return self._do(self._producer.purge(letters))

    def _do(self, work: Coroutine[Any, Any, _T]) -> _T:
        if self._closed or os.getpid() != self._process:
            work.close()
            if self._closed:
                raise ProducerClosed
            raise UsageError("this producer was made before a fork: make one in each process")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:  # KeyboardInterrupt too: nobody waits for the answer any more
            future.cancel()
            raise

    def _iterate(self, items: AsyncIterator[_T]) -> Iterator[_T]:
        async def following() -> tuple[bool, Any]:
            try:
                return True, await anext(items)
            except StopAsyncIteration:
                return False, None

        async def end() -> None:
            if (aclose := getattr(items, "aclose", None)) is not None:
                await aclose()

        try:
            while True:
                more, item = self._do(following())
                if not more:
                    return
                yield item
        finally:
            if not self._closed:
                self._do(end())

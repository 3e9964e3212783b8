"""`Producer`: what an application holds in its hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from types import TracebackType
from typing import Any, Self, Unpack

from laneway.producer.board import Board, JobStatus, Patience
from laneway.producer.dead_letters import DeadLetter, DeadLetters
from laneway.producer.errors import ResultTimeout
from laneway.producer.fields import JobFields
from laneway.producer.following import Follower
from laneway.producer.link import Link
from laneway.producer.listener import Listener
from laneway.producer.models import ModelCatalog
from laneway.producer.outbox import Outbox
from laneway.producer.settings import producer_settings
from laneway.producer.steering import Steering
from laneway.producer.submitting import Submitted, Submitter, TokenCounter
from laneway.producer.waiting import workers
from laneway.schemas.cards import WorkerCard
from laneway.schemas.events import Event
from laneway.schemas.ids import JobId
from laneway.schemas.keys import Keys
from laneway.schemas.outcome import Result
from laneway.schemas.state import JobState


class Producer:
    """Submits jobs and hears how they end.

    One per process is enough for any number of jobs and waiters. No worker needs to be running. Connections are made
    when they are first needed, so that constructing a producer does no I/O; `async with` (or `close`) ends them.

        async with Producer("redis://localhost:6379/0") as producer:
            job = await producer.submit(model="demo", prompt="Hello", stream=True)
            async for event in producer.stream(job.id):
                ...
            result = await producer.result(job.id)
    """

    def __init__(
        self,
        redis_url: str | None = None,
        *,
        namespace: str | None = None,
        count_tokens: TokenCounter | None = None,
        **settings: Any,
    ) -> None:
        """`settings` are the fields of `ProducerSettings`. `count_tokens` makes buckets exact: given the text of a
        prompt or the list of messages as it was submitted, it returns the number of tokens, or None if it can't say.

        Raises:
            InvalidSettings: names the setting, what it must be and what it is.
        """
        self.settings = producer_settings({"redis_url": redis_url, "namespace": namespace, **settings})
        self._keys = Keys(self.settings.namespace)
        self._link = Link(self.settings)
        self._listener = Listener(self._link, self.settings, self._keys)
        self._board = Board(self._link, self._keys, self.settings)
        self._steering = Steering(self._link, self._keys, self._board, self.settings)
        self._follower = Follower(self._board, self._listener, self._steering.attach, self.settings)
        models = ModelCatalog(
            self._link,
            self._keys,
            self.settings.model_cache_s,
            check=self.settings.check_model,
            offline=self.settings.outbox is not None,
        )
        self._submitter = Submitter(
            self._link, self._keys, models, self._listener, self.settings, count_tokens=count_tokens
        )
        self._dead = DeadLetters(self._link, self._keys, models, self._submitter)
        self._outbox: Outbox | None = None
        if self.settings.outbox is not None:
            self._outbox = Outbox(self._link, self._board, self._listener, self._keys, self.settings)
            self._outbox.wire(self._submitter.send, self._steering.cancel_there)
            self._submitter.accept = self._outbox.submit
            self._board.keeper = self._steering.outbox = self._outbox

    async def __aenter__(self) -> Self:
        try:
            await self.open()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Take the outbox, where there is one, and go on with the jobs in it. `async with` and the first submit do so.

        Raises:
            OutboxUnusable: the file is another producer's, something else, or cannot be opened.
        """
        if self._outbox is not None:
            await self._outbox.start()

    async def close(self) -> None:
        """Give up connections, the output stream and the outbox. Jobs go on; another producer can ask for their
        results, and goes on with the jobs in the outbox.
        """
        await self._board.close()
        if self._outbox is not None:
            await self._outbox.close()
        await self._listener.close()
        await self._link.close()

    async def submit(self, **fields: Unpack[JobFields]) -> Submitted:
        """Put one job into its lane. Waits for the server's word, not for the job.

        Raises:
            InvalidJob: an unknown field, a wrong type, a value out of bounds; `UnknownModel` and
                `DeadlineInfeasible` are such.
            QueueFull: no room within `full_wait_s`; nothing was stored.
            QueueUnavailable: the server could not be reached; nothing was sent.
            SubmitUncertain: the server was asked twice, under the same job id, and no reply came.
            OutboxFull, OutboxUnusable: with an outbox, which stands in for the two above (`Submitted.confirmed`).
        """
        return await self._submitter.submit(fields)

    def submit_many(
        self,
        jobs: Iterable[JobFields] | AsyncIterable[JobFields],
        *,
        full_wait_s: float | None = None,
    ) -> AsyncIterator[Submitted]:
        """Put jobs into their lanes, `chunk` of them per round trip, and hand out what became of them in order.

        Takes no more from `jobs` than one chunk at a time, so that a million of them need little memory.

        Raises:
            SubmitStopped: a job was refused, or there was no room within `full_wait_s` (default: the setting).
        """
        return self._submitter.submit_many(jobs, full_wait_s)

    async def result(self, job_id: str, timeout: float | None = None) -> Result:
        """The job's result, once there is one; the same on every call, for as long as it is kept.

        `job_id` may be of a job that another producer submitted. `timeout` is in seconds; without it the wait is as
        long as the job.

        Raises:
            ResultTimeout: the job goes on.
            JobNotFound: neither the job nor a result exists.
            QueueUnavailable: the server could not be reached for `outage_s`.
        """
        patience = Patience(self.settings.outage_s)
        try:
            async with asyncio.timeout(timeout):
                return await self._board.wait(JobId(job_id), self._listener, patience)
        except TimeoutError:
            raise ResultTimeout(JobId(job_id), timeout or 0.0, patience.trouble) from None

    def stream(self, job_id: str) -> AsyncIterator[Event]:
        """The job's events, in order and each once, ending with `Ended`.

        Token events join to the answer's text, whenever the stream is opened and whatever gets lost on the way: what
        is missing is taken from the stored result. `Restarted` means that a later attempt began anew: forget the text
        so far. Jobs submitted without `stream=True` show no token before their end.

        Raises:
            JobNotFound: neither the job nor a result exists.
            QueueUnavailable: the server could not be reached for `outage_s`.
        """
        return self._follower.follow(JobId(job_id))

    async def status(self, job_id: str) -> JobStatus:
        """What is known of the job right now. Raises `JobNotFound` or `QueueUnavailable`."""
        return await self._board.look(JobId(job_id))

    async def workers(self) -> list[WorkerCard]:
        """What every living worker last told of itself, a few seconds old at most. Raises `QueueUnavailable`."""
        return await workers(self._link, self._keys)

    async def cancel(self, job_id: str) -> JobState:
        """Stop the job, wherever it is. Returns the state it is in now.

        `CANCELLED`: it was still waiting and is cancelled already. Another final state: it had ended before. A living
        state: its worker has been told and will settle it within about a second; `result` waits for that.
        `QUEUED` where the server cannot be asked: the job is in the outbox, and cancelled as soon as it can be.

        Raises:
            JobNotFound: neither the job nor a result exists.
            QueueUnavailable: the server could not be asked.
        """
        return await self._steering.cancel(JobId(job_id))

    # --- dead letters -----------------------------------------------------------

    def dead_letters(
        self, model: str | None = None, *, error: str | None = None, older_s: float | None = None
    ) -> AsyncIterator[DeadLetter]:
        """The jobs that used up their attempts, oldest first in each partition: those of `model`, or of all models.

        Only letters with that `error` code, and put aside more than `older_s` seconds ago, where given. Letters that
        come during the walk are not part of it, so everything it yields may be replayed or purged on the way.

        Raises:
            UnknownModel, QueueUnavailable.
        """
        return self._dead.letters(model, error=error, older_s=older_s)

    async def dead_letter(self, letter_id: str) -> DeadLetter:
        """One dead letter, by the id of its job (or what `DeadLetter.id` says).

        Raises:
            LetterNotFound: none of that id lies here.
            InvalidJob: not an id.
            QueueUnavailable: the server could not be asked.
        """
        return await self._dead.find(letter_id)

    async def replay(self, letter: DeadLetter) -> Submitted:
        """Submit the job of `letter` once more: a new id, attempts and deadline counted anew, its old idempotency key
        replaced by one of its own. The letter goes in the same step in which the server accepts the job, so that
        nothing is lost or done twice in between. A later replay of the same letter returns the same job
        (`duplicate`) for `idempotency_ttl_s`.

        Raises:
            LetterUnreadable: there is no job in it.
            LetterNotFound: it was purged, or replayed long ago.
            QueueFull, QueueUnavailable, SubmitUncertain: as `submit`. Replaying the letter again is always safe.
        """
        return await self._dead.replay(letter)

    async def purge(self, letters: Iterable[DeadLetter]) -> int:
        """Delete dead letters for good; returns how many were still there. Raises `QueueUnavailable`."""
        return await self._dead.purge(letters)

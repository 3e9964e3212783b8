"""Events on their way to consumers: gathered per output stream, one entry per flush, one flush at a time.

The server sets the pace: while a flush is under way the next one gathers, so a slow server gets fewer, larger
entries. What a stream may gather is bounded: beyond it token events are dropped, which the consumer sees as a gap in
`seq` and mends with what is kept of the answer, or with the stored result. The end of a job is never dropped.

Tokens of a job that may go on elsewhere are kept before they are sent; where it turns out to be somebody else's, they
are not sent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping

from laneway.schemas.events import Ended, Event, Tokens
from laneway.schemas.ids import JobId
from laneway.worker.errors import QueueUnavailable
from laneway.worker.link import Link, Pause
from laneway.worker.ports import JobQueue

MOST_TOKENS = 10_000
"""Token events that one stream may gather: some 3 MB, or the output of 256 jobs for 40 engine steps."""
UNREAD_S = 5.0
"""How long nothing is sent to a stream that nobody read."""


class Publisher:
    """Gathers events by `post` and sends them from `run`."""

    def __init__(
        self,
        queue: JobQueue,
        link: Link,
        is_stale: Callable[[JobId], bool] = lambda job_id: False,
        most_tokens: int = MOST_TOKENS,
        save: Callable[[Iterable[JobId]], Awaitable[set[JobId]]] | None = None,
    ) -> None:
        """`is_stale` tells jobs that may be somebody else's by now: their events are withheld.

        `save` keeps what some jobs have generated so far; it returns those that are no longer this worker's.
        """
        self._queue = queue
        self._link = link
        self._is_stale = is_stale
        self._most = most_tokens
        self._save = save
        self._gathered: dict[str, list[Event]] = {}
        self._leaving: dict[str, list[Event]] = {}  # being kept; once that is done they are sent
        self._tokens: dict[str, int] = {}
        self._unread: dict[str, float] = {}
        self._filled = asyncio.Event()
        self._flushed = asyncio.Event()
        self._flushed.set()
        self.dropped = 0
        """Token events dropped so far, because a stream had gathered too many."""

    def post(self, outputs: Iterable[str], event: Event) -> None:
        """Have `event` sent to each of `outputs`. Never waits."""
        for output in outputs:
            if self._is_unread(output):
                continue
            if isinstance(event, Tokens):
                if self._tokens.get(output, 0) >= self._most:
                    self.dropped += 1
                    continue
                self._tokens[output] = self._tokens.get(output, 0) + 1
            self._gathered.setdefault(output, []).append(event)
            self._flushed.clear()
            self._filled.set()

    def welcome(self, output: str) -> None:
        """Somebody has just said that he reads `output`."""
        self._unread.pop(output, None)

    def forget(self, job_id: JobId) -> None:
        """Drop what is not sent yet of a job that is not this worker's any more."""
        for batch in (self._gathered, self._leaving):
            for output, events in batch.items():
                batch[output] = [event for event in events if event.job_id != job_id]

    async def run(self) -> None:
        """Send until cancelled."""
        pause = Pause()
        while True:
            await self._filled.wait()
            self._leaving = self._take()
            try:
                batch = await self._kept()
                unread = await self._link(self._queue.publish(batch)) if batch else set()
                pause.reset()
            except QueueUnavailable:
                self._keep_ends(self._leaving)
                await asyncio.sleep(pause.next())
                continue
            self._note_unread(unread)
            if not self._filled.is_set():
                self._flushed.set()

    async def flush(self, timeout: float) -> None:
        """Return when everything is sent, at the latest after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._flushed.wait()
        except TimeoutError:
            return

    def _take(self) -> dict[str, list[Event]]:
        self._filled.clear()
        gathered, self._gathered, self._tokens = self._gathered, {}, {}
        return _sent(gathered, lambda event: isinstance(event, Ended) or not self._is_stale(event.job_id))

    async def _kept(self) -> dict[str, list[Event]]:
        """What leaves, once its tokens are kept, without jobs that are somebody else's by then."""
        jobs = {e.job_id for events in self._leaving.values() for e in events if isinstance(e, Tokens)}
        gone = await self._save(jobs) if self._save and jobs else set()
        return _sent(self._leaving, lambda event: event.job_id not in gone)

    def _note_unread(self, outputs: Iterable[str]) -> None:
        now = time.monotonic()
        self._unread = {output: at for output, at in self._unread.items() if now - at < UNREAD_S}
        self._unread.update(dict.fromkeys(outputs, now))

    def _keep_ends(self, batch: dict[str, list[Event]]) -> None:
        # The reply may have been lost after the server did it: tokens sent twice would be wrong, an end is not.
        for output, events in batch.items():
            ends: list[Event] = [event for event in events if isinstance(event, Ended)]
            self._gathered[output] = ends + self._gathered.get(output, [])
        self._filled.set()

    def _is_unread(self, output: str) -> bool:
        since = self._unread.get(output)
        return since is not None and time.monotonic() - since < UNREAD_S


def _sent(batch: Mapping[str, list[Event]], wanted: Callable[[Event], bool]) -> dict[str, list[Event]]:
    """What is wanted of a batch, without streams of which nothing is."""
    found = {output: [event for event in events if wanted(event)] for output, events in batch.items()}
    return {output: events for output, events in found.items() if events}

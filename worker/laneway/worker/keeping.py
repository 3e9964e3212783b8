"""Answers in the making, kept on the server for the attempt that follows should this worker be lost.

What goes to consumers is kept before it is sent, in one call for all jobs of a flush, so that whatever a consumer has
seen is a beginning of what the next attempt goes on from. What nobody reads is kept once a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

from laneway.schemas.ids import JobId
from laneway.schemas.record import Kept
from laneway.worker.errors import QueueUnavailable
from laneway.worker.link import Link
from laneway.worker.ports import Addition, Claim, JobQueue

SAVE_S = 1.0
"""How much work of a job that nobody watches may be lost."""
MOST_EVENTS = 32_768
"""Token events kept of one job, about 0.6 MB on the server. The rest of a longer answer would be generated again."""


class Line:
    """What is still to be kept of one attempt."""

    def __init__(self, claim: Claim, first: int) -> None:
        self.claim = claim
        self.first = first
        """Number of the first event in `events`."""
        self.events: list[Kept] = []
        self.closed = False
        """Nothing more is kept: earlier events have vanished, or there are enough."""


class AnswerKeeper:
    """Gathers token events by `add` and has them kept by `save`."""

    def __init__(self, queue: JobQueue, link: Link, lost: Callable[[JobId, str], None]) -> None:
        """`lost` gets a job that turned out to be somebody else's, and the reason in one word."""
        self._queue = queue
        self._link = link
        self._lost = lost
        self._lines: dict[JobId, Line] = {}
        self._one = asyncio.Lock()

    def add(self, claim: Claim, seq: int, event: Kept) -> None:
        """Have token event number `seq` kept. Never waits."""
        line = self._lines.get(claim.job.id)
        if line is None or line.claim is not claim:
            line = self._lines[claim.job.id] = Line(claim, seq)
        line.closed = line.closed or seq >= MOST_EVENTS
        if not line.closed:
            line.events.append(event)

    def forget(self, job_id: JobId) -> None:
        """Keep nothing more of a job: it has ended, or is somebody else's."""
        self._lines.pop(job_id, None)

    async def save(self, jobs: Iterable[JobId] | None = None) -> set[JobId]:
        """Keep what was added to `jobs`, by default to all; returns those that are not this worker's any more.

        Raises:
            QueueUnavailable: it is not known what was kept. Repeating the call does no harm.
        """
        async with self._one:
            chosen = self._lines if jobs is None else jobs
            lines = [line for job_id in chosen if (line := self._lines.get(job_id)) and line.events]
            if not lines:
                return set()
            additions = [Addition(line.claim, line.first, tuple(line.events)) for line in lines]
            lengths = await self._link(self._queue.keep(additions))
        gone = set()
        for line, addition, length in zip(lines, additions, lengths, strict=True):
            kept = len(addition.events)
            line.closed = length < line.first + kept
            line.first += kept
            del line.events[: len(line.events) if line.closed else kept]
            if length < 0 and self._lines.get(line.claim.job.id) is line:
                gone.add(line.claim.job.id)
        for job_id in gone:
            self.forget(job_id)
            self._lost(job_id, "fenced")
        return gone

    async def run(self) -> None:
        """Save what nobody reads, until cancelled."""
        while True:
            await asyncio.sleep(SAVE_S)
            with suppress(QueueUnavailable):
                await self.save()

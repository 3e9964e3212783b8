"""Keeping what is in hand, and noticing when it is lost.

A lease lapses on the server when it is not renewed. It is renewed for jobs whose engine made a step within the last
lease, and for jobs of which nothing is in the engine yet; so a hung engine loses its jobs within two leases. The worker keeps its own account
by the monotonic clock, and drops what it could not renew in time before the server does: this is what happens after a
long outage, and after the process was frozen.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

from msgspec import Struct

from laneway.schemas.ids import JobId
from laneway.worker.errors import EngineDied, QueueUnavailable
from laneway.worker.link import Link
from laneway.worker.ports import Claim, JobQueue

FENCE = 0.7
"""Share of the lease after which a job that could not be renewed is dropped: 0.3 is left for what is on its way."""
CHUNK = 128
"""Jobs of one renewal: the server is busy for about 0.3 ms."""


class Holding(Struct):
    """A job in hand, as its lease sees it."""

    claim: Claim
    engine_since: Callable[[], float | None]
    """Monotonic time at which the job went into the engine; None while it is not in there."""
    renewed_at: float
    """When the claim or the last renewal that succeeded was sent."""
    ended: bool = False
    """Its outcome is being stored. The server decides whether it still may; no clock of ours does."""


class LeaseKeeper:
    """Renews leases, and calls `lost` for each job that is not this worker's any more."""

    def __init__(
        self,
        queue: JobQueue,
        link: Link,
        *,
        lease_s: float,
        hang_s: float,
        steps: Callable[[], int],
        lost: Callable[[JobId, str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`steps` is the engine's step counter, `lost` gets a job and the reason in one word."""
        self._queue = queue
        self._link = link
        self._lease_s = lease_s
        self._hang_s = hang_s
        self._steps = steps
        self._lost = lost
        self._clock = clock
        self._holdings: dict[JobId, Holding] = {}
        self._tick_s = min(1.0, lease_s / 15)
        self._ticked_at = clock()
        self._seen_steps = -1
        self._moved_at = clock()
        self._stuck_since: float | None = None

    @property
    def stuck(self) -> bool:
        """Whether jobs were dropped because the engine stood still, and it has not moved since: claim nothing."""
        return self._stuck_since is not None

    def add(self, claim: Claim, engine_since: Callable[[], float | None], sent_at: float) -> None:
        """Keep a job whose claim was asked for at `sent_at`, monotonic."""
        self._holdings[claim.job.id] = Holding(claim, engine_since, sent_at)

    def end(self, job_id: JobId) -> bool:
        """The job's attempt is over and is to be settled. False: its lease is too old, so it must be dropped."""
        holding = self._holdings.get(job_id)
        if holding is None or self._is_stale(holding):
            return False
        holding.ended = True
        return True

    def remove(self, job_id: JobId) -> None:
        """The job is not in hand any more."""
        self._holdings.pop(job_id, None)

    def is_stale(self, job_id: JobId) -> bool:
        """Whether a job in hand may be somebody else's by now."""
        holding = self._holdings.get(job_id)
        return holding is not None and self._is_stale(holding)

    def _is_stale(self, holding: Holding) -> bool:
        return not holding.ended and self._clock() - holding.renewed_at > FENCE * self._lease_s

    # --- renewal ----------------------------------------------------------------

    async def renew_forever(self) -> None:
        """Renew every third of the lease; after a failure, sooner."""
        pause = self._lease_s / 3
        while True:
            await asyncio.sleep(pause)
            try:
                await self.renew()
                pause = self._lease_s / 3
            except QueueUnavailable:
                pause = self._tick_s

    async def renew(self) -> None:
        """One round. Raises `QueueUnavailable`."""
        started = self._clock()
        self._look_at_engine(started)
        due = [holding for holding in self._holdings.values() if self._makes_progress(holding)]
        for first in range(0, len(due), CHUNK):
            await self._renew(due[first : first + CHUNK])

    async def _renew(self, chunk: list[Holding]) -> None:
        sent_at = self._clock()
        lost = set(await self._link(self._queue.renew([holding.claim for holding in chunk])))
        for holding in chunk:
            if holding.claim.job.id in lost:
                self._give_up(holding, "taken")
            else:
                holding.renewed_at = sent_at

    def _makes_progress(self, holding: Holding) -> bool:
        """Whether its engine made a step within the last lease. A single step may take long, on a CPU or with a long
        prompt: to stop renewing at the first quiet third of a lease hands slow jobs round for ever."""
        entered = holding.engine_since()
        return entered is None or self._clock() - max(entered, self._moved_at) <= self._lease_s

    def _give_up(self, holding: Holding, why: str) -> None:
        job_id = holding.claim.job.id
        if self._holdings.get(job_id) is holding and not holding.ended:
            del self._holdings[job_id]
            self._lost(job_id, why)

    # --- the watch --------------------------------------------------------------

    async def watch_forever(self) -> None:
        """Drop what could not be renewed in time.

        Raises:
            EngineDied: the engine has made no step for `hang_s` although it held jobs.
        """
        while True:
            self.watch()
            await asyncio.sleep(self._tick_s)

    def watch(self) -> None:
        """One look at the clock, the engine and every lease. Raises `EngineDied` as `watch_forever` does."""
        now = self._clock()
        if now - self._ticked_at > 3 * self._tick_s + 1:
            # This process stood still: how long the engine did is not known.
            self._moved_at = now
        self._ticked_at = now
        self._look_at_engine(now)
        still_since = self._still_since()
        for holding in tuple(self._holdings.values()):
            if self._is_stale(holding):
                if holding.engine_since() is not None and now - self._moved_at > self._lease_s / 3:
                    self._stuck_since = self._stuck_since or still_since
                self._give_up(holding, "not_renewed")
        if self._hang_s and still_since is not None and now - still_since >= self._hang_s:
            raise EngineDied(f"the engine made no step for {self._hang_s:g} s while it held jobs")

    def _look_at_engine(self, now: float) -> None:
        steps = self._steps()
        if steps != self._seen_steps:
            self._seen_steps, self._moved_at, self._stuck_since = steps, now, None

    def _still_since(self) -> float | None:
        if self._stuck_since is not None:
            return self._stuck_since
        entries: Iterable[float | None] = (holding.engine_since() for holding in self._holdings.values())
        inside = [entered for entered in entries if entered is not None]
        return max(min(inside), self._moved_at) if inside else None

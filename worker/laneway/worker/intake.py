"""How jobs come in: claimed when there is a seat for them, and taken over from workers that fell silent."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import Counter
from collections.abc import Sequence

from laneway.schemas.ids import JobId
from laneway.worker.errors import QueueUnavailable
from laneway.worker.hands import Hands
from laneway.worker.lease import LeaseKeeper
from laneway.worker.link import Link, Pause
from laneway.worker.policy import offers
from laneway.worker.policy.admission import ClaimPlan, may_hold_more, plan_claim, window_of
from laneway.worker.ports import Claim, JobQueue, Unreadable
from laneway.worker.settings import WorkerSettings
from laneway.worker.telemetry import Telemetry

POLL_S = 1.0
"""Longest wait for the bell: how late a worker may see a job whose ring it missed."""
RECLAIM_S = 2.0
"""Mean pause between two looks for lapsed leases and suspects; a quarter of the lease where that is less."""
SHY_S = 0.25
"""What the others then get to take it: an idle worker takes a millisecond."""
QUIET_S = 0.005
"""Pause after a ring that brought nothing: it was for a lane from which this worker may not take now."""


class Intake:
    """Claims and reclaims until `close`."""

    def __init__(
        self,
        *,
        settings: WorkerSettings,
        queue: JobQueue,
        link: Link,
        hands: Hands,
        lease: LeaseKeeper,
        telemetry: Telemetry,
    ) -> None:
        self._settings = settings
        self._queue = queue
        self._link = link
        self._hands = hands
        self._lease = lease
        self._telemetry = telemetry
        self._closed = asyncio.Event()
        self._changed = asyncio.Event()
        self._dry = False
        """The last look left the lanes empty: other workers may be idle."""
        self._shy_until = 0.0
        """Until then no throughput job is claimed: this worker has just handed some back for others to take."""
        self._offers = offers.Offers()
        self._bell: asyncio.Task[None] | None = None
        self._turn = 0
        self._asking = set(range(settings.partitions))
        """Partitions to be asked for suspects as soon as the engine is empty: it is now."""
        self.appointed = False
        """Nothing but suspects is claimed: the engine is to become empty for them, or has been."""
        self._isolating: int | None = None
        """Partition of the suspects that have the engine to themselves."""
        self._unsure = False
        """A claim was not answered: there may be jobs that are this worker's without its knowing."""
        self.looked_at = time.monotonic()
        """When the loop last went round, whether or not the server answered."""

    def close(self) -> None:
        """Claim nothing from now on."""
        self._closed.set()
        self._changed.set()

    def room_changed(self) -> None:
        """A seat came free: look again."""
        self._changed.set()

    # --- claim ------------------------------------------------------------------

    async def claim_forever(self) -> None:
        """Fill free seats from the lanes, latency first; wait for the bell when nothing is there."""
        try:
            await self._claim_until_closed()
        finally:
            if self._bell is not None:
                self._bell.cancel()

    async def _claim_until_closed(self) -> None:
        pause = Pause()
        while not self._closed.is_set():
            self.looked_at = time.monotonic()
            self._changed.clear()
            try:
                if not await self.claim():
                    await self._wait()
                pause.reset()
            except QueueUnavailable:
                self._unsure = True
                await self._sleep(pause.next())

    async def claim(self) -> bool:
        """One round over all partitions. True: there may be more where that came from, and room for it.

        Suspects come first where this worker was appointed to them, and last where it happens to be idle.
        """
        if self._unsure:
            await self._link(self._queue.disown(self._hands.claims()))
            self._unsure = False
        if self._isolating is not None and len(self._hands):
            return await self._join(self._isolating)
        self._isolating = None
        if self.appointed and await self._isolate(idle=False):
            return False
        more = False if self.appointed else await self._claim()
        return more or await self._isolate(idle=True)

    async def _claim(self) -> bool:
        partitions = self._settings.partitions
        self._turn += 1
        for step in range(partitions):
            plan = self._plan((self._turn + step) % partitions)
            if plan.total == 0 or self._lease.stuck or self._closed.is_set():
                return False
            sent_at = time.monotonic()
            items = await self._link(self._queue.claim(plan))
            await self._take(items, sent_at)
            if may_hold_more(plan, Counter(item.lane for item in items)):
                return True
        self._dry = self._plan(0).total > 0
        if self._dry and time.monotonic() >= self._shy_until:
            offers.gone(self._offers)
        return False

    def _plan(self, partition: int) -> ClaimPlan:
        ledger = self._hands.ledger()
        shy = time.monotonic() < self._shy_until
        return plan_claim(
            ledger,
            window=0 if shy else window_of(ledger.seats, self._settings.window),
            partition=partition,
            turn=self._turn // self._settings.partitions,
            most=self._settings.claim_most,
        )

    async def _isolate(self, *, idle: bool) -> bool:
        """Where the engine is empty, suspects for it. Whether there are any."""
        if not self._asking or len(self._hands) or self._lease.stuck or self._closed.is_set():
            return False
        for partition in sorted(self._asking):
            sent_at = time.monotonic()
            group = await self._link(self._queue.isolate(partition, empty=True, idle=idle))
            self.appointed = bool(group) and not idle
            if group:
                self._isolating = partition
                await self._take(group, sent_at)
                return True
            if idle:
                self._asking.discard(partition)
        return False

    async def _join(self, partition: int) -> bool:
        """Others join the suspects in hand, whose group is not full any more, unless one of them is to be alone."""
        group = self._hands.claims()
        if self.appointed and not self._closed.is_set() and not any(claim.isolated for claim in group):
            sent_at = time.monotonic()
            more = await self._link(self._queue.isolate(partition, empty=True, beside=group))
            await self._take(more or (), sent_at)
        return False

    async def _wait(self) -> None:
        """Until the bell rings, room changes, a back-off ends or a poll is due. The bell is left to others while there is no seat."""
        waits: set[asyncio.Task[object]] = {asyncio.create_task(self._changed.wait())}
        listening = self._hands.ledger().free > 0 and not self._lease.stuck
        listening = listening and not self.appointed and self._isolating is None
        if listening:
            if self._bell is None:
                self._bell = asyncio.create_task(self._link(self._queue.wait(POLL_S)))
            # Kept from one call to the next: a blocking read that is cancelled costs its connection.
            waits.add(self._bell)
        patience = min(POLL_S, max(QUIET_S, self._queue.due_in())) if listening else POLL_S
        done, _ = await asyncio.wait(waits, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits - {self._bell}:
            wait.cancel()
        if self._bell in done:
            bell, self._bell = self._bell, None
            bell.result()
            if not self._spare():
                await self._sleep(QUIET_S)

    def _spare(self) -> bool:
        """Whether there is room for a job of any lane."""
        return all(stage.cap for stage in self._plan(0).stages)

    # --- reclaim ----------------------------------------------------------------

    async def reclaim_forever(self) -> None:
        """Take over what others lost, and what has waited out its back-off, whenever there is room."""
        mean = min(self._settings.lease_s / 4, RECLAIM_S)
        pause = Pause()
        while not self._closed.is_set():
            seconds = mean * random.uniform(0.75, 1.25)  # noqa: S311 - only to keep workers apart
            try:
                await self.reclaim()
                await self.look_for_suspects()
                await self.offer_window()
                pause.reset()
            except QueueUnavailable:
                seconds = min(seconds, pause.next())  # what lapsed meanwhile has waited long enough
            await self._sleep(seconds)

    async def reclaim(self) -> None:
        """One look. Raises `QueueUnavailable`."""
        if self._hands.ledger().free and await self._link(self._queue.reclaim()):
            self.room_changed()

    async def offer_window(self) -> None:
        """Offer to others what has long waited here for a seat while the lanes are empty. Raises `QueueUnavailable`."""
        if self._isolating is not None:
            return
        if self.appointed:
            await self._hands.return_window()
        elif self._dry:
            self._shy_until, back = math.inf, frozenset[JobId]()
            try:
                back = await self._hands.return_window(self._offers.patience_s)
            finally:
                self._shy_until = time.monotonic() + SHY_S if back else 0.0
            self._offers.out |= back

    async def look_for_suspects(self) -> None:
        """Find out whether this worker's engine is to be emptied for suspects. Raises `QueueUnavailable`."""
        for partition in range(self._settings.partitions):
            if self._isolating not in (None, partition) or (self.appointed and partition not in self._asking):
                continue
            if len(self._hands):
                group = () if self._isolating is None else self._hands.claims()
                look = self._queue.isolate(partition, empty=False, beside=group)
                wanted = await self._link(look) is not None
                if not wanted and not self.appointed:
                    continue
                self.appointed = wanted
            self._asking.add(partition)
            self.room_changed()

    # --- both -------------------------------------------------------------------

    async def _take(self, items: Sequence[Claim | Unreadable], sent_at: float) -> None:
        offers.claimed(self._offers, (item.job.id for item in items if isinstance(item, Claim)))
        for item in items:
            if isinstance(item, Unreadable):
                await self._bury(item)
            elif self._closed.is_set():
                self._hands.returned.append(item)
            else:
                self._hands.take(item, sent_at)

    async def _bury(self, entry: Unreadable) -> None:
        try:
            await self._link(self._queue.bury(entry))
        except QueueUnavailable:
            return  # it stays leased, lapses and comes back
        self._telemetry.tell(
            "job.dead_lettered",
            job_id=entry.job_id,
            slo=entry.lane.slo.value,
            bucket=entry.lane.bucket.value,
            code="unreadable",
            reason=entry.reason,
        )

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        except TimeoutError:
            return

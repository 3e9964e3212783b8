"""`JobQueue` over a `MemoryServer`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from laneway.schemas import wire
from laneway.schemas.cards import Control, ModelCard, WorkerCard
from laneway.schemas.events import Event
from laneway.schemas.ids import JobId, WorkerId, queue_tag
from laneway.schemas.keys import HELD, RETURNED, SUSPECTS, Lane, lanes
from laneway.schemas.outcome import Failed, JobError, Result
from laneway.schemas.record import JobRecord
from laneway.schemas.state import JobState
from laneway.worker.errors import QueueUnfit
from laneway.worker.policy.admission import ClaimPlan
from laneway.worker.policy.quarantine import SEEN, SILENT, SUSPECT, UNBEGUN, group_size
from laneway.worker.ports import Addition, Claim, Depth, Settlement, Unreadable
from laneway.worker.queue.entries import RawEntry, read_entry, unreadable_result
from laneway.worker.queue.memory import PLACES, DeadLetter, Entry, MemoryServer, first_of


class MemoryQueue:
    """The jobs of one model on a `MemoryServer`, as one worker sees them."""

    def __init__(
        self,
        server: MemoryServer,
        model: str,
        worker: WorkerId,
        *,
        partitions: int = 1,
        lease_s: float = 15.0,
    ) -> None:
        self._server = server
        self._model = model
        self._tag = queue_tag(model)
        self._worker = worker
        self._partitions = partitions
        self._lease_s = lease_s
        self._heard = [0] * partitions

    async def open(self, card: ModelCard) -> None:
        """See `JobQueue.open`."""
        known = self._server.models.setdefault(self._tag, card)
        if known.partitions != self._partitions:
            raise QueueUnfit(
                f"partitions: expected {known.partitions}, as the model {self._model} has on this server, "
                f"got {self._partitions}"
            )
        if card.context_tokens or not known.context_tokens:
            self._server.models[self._tag] = card.after(known)
        self._heard = [len(self._server.controls.get((self._tag, p), ())) for p in range(self._partitions)]

    async def close(self) -> None:
        """See `JobQueue.close`."""

    # --- claiming ---------------------------------------------------------------

    async def claim(self, plan: ClaimPlan) -> list[Claim | Unreadable]:
        """See `JobQueue.claim`."""
        self._release_due()
        taken: list[Claim | Unreadable] = []
        for stage in plan.stages:
            cap = stage.cap
            for lane in stage.lanes:
                room = min(cap, plan.total - len(taken))
                found = [self._take(entry) for entry in self._offered(lane)[: max(0, room)]]
                cap -= len(found)
                taken += found
        return taken

    def _offered(self, lane: Lane) -> list[Entry]:
        entries = self._server.lane(self._tag, lane)
        for entry in [entry for entry in entries.values() if entry.job_id in self._server.results]:
            del entries[entry.id]
        returned = [entry for entry in entries.values() if entry.owner == RETURNED]
        offered = returned + [entry for entry in entries.values() if not entry.owner]
        for entry in offered:
            if self._losses(entry) >= SUSPECT:
                entry.owner = SUSPECTS
        return [entry for entry in offered if entry.owner != SUSPECTS]

    def _losses(self, entry: Entry) -> int:
        record = self._server.records.get(entry.job_id) if entry.job_id is not None else None
        return record.losses if record is not None else 0

    async def isolate(
        self, partition: int, *, empty: bool, idle: bool = False, beside: Sequence[Claim] = ()
    ) -> list[Claim | Unreadable] | None:
        """See `JobQueue.isolate`."""
        part, now = (self._tag, partition), self._server.clock()
        appointed, until, busy = self._server.quarantines.get(part, (self._worker, 0.0, False))
        busy = busy and until > now
        others = appointed != self._worker and until > now
        next_ones = others and bool(beside) and not empty and not busy
        if others and not next_ones and (beside or not empty or (busy and not idle)):
            return None
        waiting = [e for e in self._entries() if e.owner == SUSPECTS and e.lane.partition == partition]
        if not waiting:
            if empty and not beside and not others:
                self._server.quarantines.pop(part, None)
            return None
        if not others or next_ones or (empty and not busy):
            mine = self._worker, now + 2 * self._lease_s, empty or bool(beside) or busy
            self._server.quarantines[part] = mine
        return self._group(waiting, beside) or None if empty else []

    def _group(self, waiting: Sequence[Entry], beside: Sequence[Claim]) -> list[Claim | Unreadable]:
        most = max(self._losses(entry) for entry in waiting)
        if beside and beside[0].losses != most:
            return []
        same = [entry for entry in waiting if self._losses(entry) == most]
        group = same[: max(0, (group_size(most) or 0) - len(beside))]
        for entry in group:
            self._server.isolated[entry.id] = len(group) + len(beside) == 1
        return [self._take(entry) for entry in group]

    def _take(self, entry: Entry) -> Claim | Unreadable:
        server, now = self._server, self._server.now_ms()
        entry.owner, entry.touched = self._worker, server.clock()
        record = None
        if entry.job_id is not None:
            known = server.records.setdefault(entry.job_id, JobRecord(job_id=entry.job_id))
            server.update(
                entry.job_id,
                state=JobState.CLAIMED,
                lane=entry.lane.name,
                entry=entry.id,
                attempt=known.attempt + 1,
                owner=self._worker,
                claimed=now,
            )
            record = server.records[entry.job_id]
        raw = RawEntry(
            lane=entry.lane,
            entry=entry.id,
            job_id=entry.job_id,
            data=entry.data,
            submitted_ms=entry.submitted_ms,
            attempt=record.attempt if record else 0,
            failures=record.failures if record else 0,
            outputs=tuple(record.outputs.split()) if record else (),
            cancelled=entry.job_id in server.cancels,
            losses=record.losses if record else 0,
            evidence=server.evidence.get(entry.id, 0),
            isolated=server.isolated.get(entry.id, False),
        )
        return read_entry(raw, entry.data, now, server.kept.get(entry.job_id, ()) if entry.job_id else ())

    def _release_due(self) -> None:
        for entry in self._entries():
            if entry.owner == HELD and entry.due <= self._server.clock():
                entry.owner = RETURNED

    async def disown(self, held: Sequence[Claim]) -> int:
        """See `JobQueue.disown`."""
        known = {claim.entry for claim in held}
        lost = [entry for entry in self._entries() if entry.owner == self._worker and entry.id not in known]
        for entry in lost:
            entry.owner = RETURNED
            if entry.job_id is not None:
                self._server.update(entry.job_id, state=JobState.QUEUED, owner="")
        self._server.ring()
        return len(lost)

    async def reclaim(self) -> int:
        """See `JobQueue.reclaim`."""
        lapsed = [entry for entry in self._entries() if self._is_lapsed(entry)]
        for entry in lapsed:
            entry.owner = RETURNED
            record = self._server.records.get(entry.job_id) if entry.job_id is not None else None
            if record is None:
                continue
            if record.state is JobState.RUNNING:
                if self._server.isolated.get(entry.id) and self._stood_still(record.job_id):
                    self._weigh(entry, SILENT)
                losses = record.losses + 1
            else:
                losses = record.losses + self._count_unbegun(record)
            self._server.update(record.job_id, state=JobState.QUEUED, owner="", losses=losses)
        if lapsed:
            self._server.ring()
        return len(lapsed)

    def _is_lapsed(self, entry: Entry) -> bool:
        return entry.owner not in PLACES and self._server.clock() - entry.touched >= self._lease_s

    def _stood_still(self, job_id: JobId) -> bool:
        """Whether no more is kept of it than there was."""
        kept, furthest = len(self._server.kept.get(job_id, ())), self._server.furthest
        if kept <= furthest.get(job_id, 0):
            return True
        furthest[job_id] = kept
        return False

    def _count_unbegun(self, record: JobRecord) -> bool:
        """Whether this makes it a crash."""
        if record.losses >= SUSPECT:
            return False
        count = self._server.unbegun[record.job_id] = self._server.unbegun.get(record.job_id, 0) + 1
        return count % UNBEGUN == 0

    def _weigh(self, entry: Entry, weight: int) -> None:
        if self._server.isolated.get(entry.id):
            self._server.evidence[entry.id] = self._server.evidence.get(entry.id, 0) + weight

    def due_in(self) -> float:
        """See `JobQueue.due_in`."""
        held = (entry.due for entry in self._entries() if entry.owner == HELD)
        return max(0.0, min(held, default=math.inf) - self._server.clock())

    async def wait(self, timeout: float) -> None:
        """See `JobQueue.wait`."""
        if not any(entry.owner in ("", RETURNED) for entry in self._entries()):
            await self._server.wait(timeout)

    # --- holding ----------------------------------------------------------------

    async def renew(self, claims: Sequence[Claim]) -> list[JobId]:
        """See `JobQueue.renew`."""
        lost = []
        for claim in claims:
            entry = self._mine(claim)
            if entry is None:
                lost.append(claim.job.id)
            else:
                entry.touched = self._server.clock()
        return lost

    async def start(self, claim: Claim) -> None:
        """See `JobQueue.start`."""
        if self._mine(claim) is not None:
            self._server.update(claim.job.id, state=JobState.RUNNING, started=self._server.now_ms())

    async def keep(self, additions: Sequence[Addition]) -> list[int]:
        """See `JobQueue.keep`."""
        return [self._keep(addition) for addition in additions]

    def _keep(self, addition: Addition) -> int:
        claim, kept = addition.claim, self._server.kept
        job_id, record = claim.job.id, self._server.records.get(claim.job.id)
        if record is None:
            return 0
        if self._server.settled.get(job_id) == claim.attempt == record.attempt:
            return addition.first + len(addition.events)
        if record.attempt != claim.attempt or record.owner != self._worker:
            return -1
        events = kept.get(job_id, []) if addition.first else []
        if addition.first <= len(events):
            events += map(wire.encode, addition.events[len(events) - addition.first :])
            kept[job_id] = events
        return len(events)

    # --- ending -----------------------------------------------------------------

    async def settle(self, claim: Claim, result: Result) -> Settlement:
        """See `JobQueue.settle`."""
        job_id = claim.job.id
        record = self._server.records.get(job_id)
        if record is not None and record.attempt != claim.attempt:
            return Settlement.FENCED
        if job_id in self._server.results:
            repeated = self._server.settled[job_id] == claim.attempt
            return Settlement.REPEATED if repeated else Settlement.FENCED
        entry = Entry(claim.entry, claim.lane, b"", job_id, claim.submitted_ms)
        self._server.finish(self._tag, entry, result, claim.attempt)
        return Settlement.STORED

    async def dead_letter(self, claim: Claim, result: Result) -> Settlement:
        """See `JobQueue.dead_letter`."""
        settlement = await self.settle(claim, result)
        if settlement is Settlement.STORED:
            error = result.outcome.error.code if isinstance(result.outcome, Failed) else ""
            letter = DeadLetter(
                job_id=claim.job.id, data=wire.encode_job(claim.job), error=error, attempt=claim.attempt
            )
            self._server.dead.append(letter)
        return settlement

    async def hand_back(self, claims: Sequence[Claim]) -> None:
        """See `JobQueue.hand_back`."""
        for claim in claims:
            if (entry := self._mine(claim)) is not None:
                entry.owner = RETURNED
                self._server.update(claim.job.id, state=JobState.QUEUED, owner="")
        self._server.ring()

    async def retry(self, claim: Claim, error: JobError, delay_ms: int) -> bool:
        """See `JobQueue.retry`."""
        entry = self._mine(claim)
        if entry is None:
            return self._server.given_up.get(claim.job.id) == claim.attempt
        self._server.given_up[claim.job.id] = claim.attempt
        entry.owner, entry.due = HELD, self._server.clock() + delay_ms / 1000
        record = self._server.records.get(claim.job.id)
        failures = record.failures + 1 if record else 1
        state = JobState.RETRYING
        self._server.update(claim.job.id, state=state, failures=failures, owner="", error=error.code)
        return True

    async def lose(self, claim: Claim, error: JobError) -> bool:
        """See `JobQueue.lose`."""
        entry = self._mine(claim)
        if entry is None:
            return self._server.given_up.get(claim.job.id) == claim.attempt
        self._server.given_up[claim.job.id] = claim.attempt
        self._weigh(entry, SEEN)
        entry.owner = RETURNED
        record = self._server.records.get(claim.job.id)
        losses = record.losses + 1 if record else 1
        state = JobState.RETRYING
        self._server.update(claim.job.id, state=state, losses=losses, owner="", error=error.code)
        self._server.ring()
        return True

    async def bury(self, entry: Unreadable) -> None:
        """See `JobQueue.bury`."""
        found = self._server.lane(self._tag, entry.lane).pop(entry.entry, None)
        if found is not None:
            letter = DeadLetter(
                job_id=entry.job_id, data=found.data, error="unreadable", attempt=entry.attempt
            )
            self._server.dead.append(letter)
        if found is not None and entry.job_id is not None and entry.job_id not in self._server.results:
            result = unreadable_result(entry, entry.job_id, self._model, self._server.now_ms())
            self._server.finish(self._tag, found, result, entry.attempt)
            self._server.update(entry.job_id, error="unreadable")

    # --- telling ----------------------------------------------------------------

    async def publish(self, events: Mapping[str, Sequence[Event]]) -> set[str]:
        """See `JobQueue.publish`."""
        read = self._server.outputs
        for output, batch in events.items():
            if output in read:
                read[output] += batch
        return {output for output in events if output not in read}

    async def controls(self, timeout: float) -> list[Control]:
        """See `JobQueue.controls`."""
        heard = self._news()
        if not heard:
            await self._server.wait(timeout)
            heard = self._news()
        return heard

    def _news(self) -> list[Control]:
        news: list[Control] = []
        for partition, known in enumerate(self._heard):
            told = self._server.controls.get((self._tag, partition), [])
            news += told[known:]
            self._heard[partition] = len(told)
        return news

    async def beat(self, card: WorkerCard) -> None:
        """See `JobQueue.beat`."""
        self._server.workers[self._worker] = card

    async def depths(self) -> list[Depth]:
        """See `JobQueue.depths`."""
        return [self._depth(lane) for partition in range(self._partitions) for lane in lanes(partition)]

    def _depth(self, lane: Lane) -> Depth:
        entries = self._server.lane(self._tag, lane).values()
        waiting = [entry for entry in entries if entry.owner in PLACES]
        return Depth(lane, len(waiting), len(entries) - len(waiting), first_of(waiting))

    def now_ms(self) -> int:
        """See `JobQueue.now_ms`."""
        return self._server.now_ms()

    # --- within -----------------------------------------------------------------

    def _entries(self) -> Iterator[Entry]:
        for partition in range(self._partitions):
            for lane in lanes(partition):
                yield from tuple(self._server.lane(self._tag, lane).values())

    def _mine(self, claim: Claim) -> Entry | None:
        """The claim's entry, while this attempt owns it."""
        entry = self._server.lane(self._tag, claim.lane).get(claim.entry)
        record = self._server.records.get(claim.job.id)
        fenced = record is not None and record.attempt != claim.attempt
        return entry if entry is not None and entry.owner == self._worker and not fenced else None

"""Jobs kept in the process: the state that Redis would hold, and the steps that its scripts would take.

`MemoryServer` stands for the server; each worker has a `MemoryQueue` on it. For tests, trials and simulations; gone
with the process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from laneway.schemas import wire
from laneway.schemas.cards import AttachJob, CancelJob, Control, ModelCard, WorkerCard
from laneway.schemas.events import Event
from laneway.schemas.ids import JobId, WorkerId, parse_job_id
from laneway.schemas.job import Job
from laneway.schemas.keys import HELD, RETURNED, SUSPECTS, Lane
from laneway.schemas.outcome import Cancelled, Result
from laneway.schemas.record import JobRecord
from laneway.schemas.state import FINAL_STATES, JobState

PLACES = ("", RETURNED, HELD, SUSPECTS)
"""Owners that are nobody: an entry never delivered, handed back or lapsed, in its back-off, or in quarantine."""

Part = tuple[str, int]
"""One partition of one model's queue: tag of the model and number of the partition."""


class Entry(Struct):
    """An entry of a lane, and who has it."""

    id: str
    lane: Lane
    data: bytes
    job_id: JobId | None
    submitted_ms: int
    owner: str = ""
    touched: float = 0.0
    """When its lease began or was renewed, by the server's clock."""
    due: float = 0.0
    """When its back-off is over, by the same."""


class DeadLetter(Struct, frozen=True, kw_only=True):
    """A job that was given up, or an entry that was none."""

    job_id: JobId | None
    data: bytes
    error: str
    attempt: int = 0


class MemoryServer:
    """What several `MemoryQueue`s share, and what a producer would do."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives seconds that never go back; leases and back-offs go by it."""
        self.clock = clock
        self._epoch_ms = time.time_ns() // 1_000_000 - round(clock() * 1000)
        self._count = 0
        self._waiters: set[asyncio.Future[None]] = set()
        self.lanes: dict[tuple[str, Lane], dict[str, Entry]] = {}
        self.records: dict[JobId, JobRecord] = {}
        self.settled: dict[JobId, int] = {}
        """Attempt whose outcome is the job's result."""
        self.results: dict[JobId, Result] = {}
        self.quarantines: dict[Part, tuple[WorkerId, float, bool]] = {}
        """Which worker is appointed to the suspects of a partition, until when by the clock, and whether it has some."""
        self.isolated: dict[str, bool] = {}
        """Whether an entry was claimed to be alone in its engine."""
        self.evidence: dict[str, int] = {}
        """Weight of what happened to an entry that was."""
        self.furthest: dict[JobId, int] = {}
        """Events that were kept of a job when it was last lost alone and in silence."""
        self.unbegun: dict[JobId, int] = {}
        """Leases of a job that lapsed before the attempt had begun."""
        self.given_up: dict[JobId, int] = {}
        """Attempt after which a job was last offered again by the worker that had it."""
        self.kept: dict[JobId, list[bytes]] = {}
        self.cancels: set[JobId] = set()
        self.controls: dict[Part, list[Control]] = {}
        self.outputs: dict[str, list[Event]] = {}
        self.dead: list[DeadLetter] = []
        self.models: dict[str, ModelCard] = {}
        self.workers: dict[WorkerId, WorkerCard] = {}

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        return self._epoch_ms + round(self.clock() * 1000)

    # --- what a producer does ----------------------------------------------------

    def submit(self, job: Job) -> JobId:
        """Put a job into its lane; the same id twice is one job."""
        if job.id not in self.records:
            tag, partition = parse_job_id(job.id)
            lane = Lane(partition, job.slo, job.bucket)
            entry = self.add(tag, lane, wire.encode_job(job), job.id)
            self.records[job.id] = JobRecord(
                job_id=job.id,
                lane=lane.name,
                entry=entry.id,
                submitted=entry.submitted_ms,
                outputs=job.reply_to or "",
            )
        return job.id

    def add(self, tag: str, lane: Lane, data: bytes, job_id: JobId | None = None) -> Entry:
        """Append an entry to a lane of the model with that tag, whatever it holds."""
        self._count += 1
        now = self.now_ms()
        entry = Entry(f"{now}-{self._count}", lane, data, job_id, now)
        self.lanes.setdefault((tag, lane), {})[entry.id] = entry
        self.ring()
        return entry

    def result(self, job_id: JobId) -> Result | None:
        """The job's outcome, once there is one."""
        return self.results.get(job_id)

    def record(self, job_id: JobId) -> JobRecord | None:
        """What is known of the job."""
        return self.records.get(job_id)

    def cancel(self, job_id: JobId) -> JobState | None:
        """Cancel the job: at once while nobody has it, else by telling the workers. None: there is no such job."""
        record = self.records.get(job_id)
        if record is None or record.state in FINAL_STATES:
            return record.state if record else None
        part = parse_job_id(job_id)
        entry = self.find(job_id)
        if entry is not None and entry.owner in PLACES:
            self.finish(part[0], entry, Result(job_id=job_id, outcome=Cancelled()), 0)
            return JobState.CANCELLED
        self.cancels.add(job_id)
        self._tell(part, CancelJob(job_id=job_id))
        return record.state

    def attach(self, job_id: JobId, output: str) -> None:
        """Have the job's events published to one more output."""
        record = self.records[job_id]
        self.records[job_id] = replace(record, outputs=f"{record.outputs} {output}".strip())
        self._tell(parse_job_id(job_id), AttachJob(job_id=job_id, output=output))

    def listen(self, output: str) -> list[Event]:
        """The events published to `output` from now on; the list grows."""
        return self.outputs.setdefault(output, [])

    # --- what several workers' queues share --------------------------------------

    def lane(self, tag: str, lane: Lane) -> dict[str, Entry]:
        """The entries of a lane by their ids, oldest first."""
        return self.lanes.setdefault((tag, lane), {})

    def find(self, job_id: JobId) -> Entry | None:
        """The job's entry, if it waits or is in hand."""
        record = self.records.get(job_id)
        if record is None:
            return None
        tag, partition = parse_job_id(job_id)
        lanes = (lane for known, lane in self.lanes if known == tag and lane.partition == partition)
        return next(
            (self.lanes[tag, lane].get(record.entry) for lane in lanes if lane.name == record.lane), None
        )

    def update(self, job_id: JobId, **fields: object) -> None:
        """Change the job's record, if it has one."""
        if job_id in self.records:
            self.records[job_id] = replace(self.records[job_id], **fields)

    def finish(self, tag: str, entry: Entry, result: Result, attempt: int) -> None:
        """Store the result and remove the entry."""
        job_id = result.job_id
        self.results[job_id] = result
        self.settled[job_id] = attempt
        self.cancels.discard(job_id)
        self.kept.pop(job_id, None)
        self.lane(tag, entry.lane).pop(entry.id, None)
        self.update(job_id, state=result.state, ended=self.now_ms())

    def ring(self) -> None:
        """Wake everybody who waits."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, timeout: float) -> None:
        """Return at the next ring, at the latest after `timeout` seconds of the event loop."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await asyncio.wait({waiter}, timeout=timeout)
        finally:
            self._waiters.discard(waiter)

    def _tell(self, part: Part, control: Control) -> None:
        self.controls.setdefault(part, []).append(control)
        self.ring()


def first_of(entries: Sequence[Entry]) -> int:
    """When the oldest of some entries was accepted; 0 where there are none."""
    return min((entry.submitted_ms for entry in entries), default=0)

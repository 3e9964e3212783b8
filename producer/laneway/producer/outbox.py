"""The outbox: every accepted job is kept in a file until its outcome has been seen, whatever becomes of the server or of
this process.

A job is on the disk before it is sent. From then on it is looked at: when its end is heard of, when the server was away
or lost something, and now and then. Where the server does not know it any more, it is sent again under the same id and
idempotency key, for what is left of its deadline; where nothing is left, it is settled as expired.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import time
from collections.abc import Awaitable, Callable, Sequence

from msgspec.structs import replace

from laneway.producer.board import Board
from laneway.producer.errors import (
    JobNotFound,
    OutboxFull,
    ProducerClosed,
    QueueFull,
    QueueUnavailable,
    SubmitUncertain,
)
from laneway.producer.link import Link
from laneway.producer.listener import Listener
from laneway.producer.outbox_file import Change, Disk, OutboxFile, Row, cancelled, dropped, kept
from laneway.producer.settings import ProducerSettings
from laneway.producer.submitting import Answer, Send, Submitted
from laneway.schemas.errors import LanewayError, UnreadableEntry
from laneway.schemas.ids import JobId
from laneway.schemas.job import Job
from laneway.schemas.keys import Keys
from laneway.schemas.outcome import Cancelled, Expired, Outcome, Result
from laneway.schemas.state import FINAL_STATES
from laneway.schemas.wire import decode_job, encode, encode_job

_LOOKS = 256  # jobs per round trip

Cancel = Callable[[JobId], Awaitable[object]]
"""Cancels a job that the server has."""


class _Entry:
    """A job in the file, and what is known of it."""

    __slots__ = (
        "cancelled",
        "confirmed",
        "due",
        "id",
        "pause",
        "place",
        "seen",
        "sending",
        "since_ms",
        "size",
    )

    def __init__(self, row: Row, *, sending: bool = False) -> None:
        self.id, self.place, self.since_ms, self.size = row.id, row.place, row.since_ms, row.size
        self.cancelled = row.cancelled
        self.sending = sending  # a submit has it in hand: it may still be refused
        self.confirmed = False  # the server is known to have had it
        self.seen = False  # somebody here has read its result
        self.due = 0.0
        self.pause = 0.0


class Outbox:
    """Keeps jobs, and follows them until they have ended."""

    def __init__(
        self, link: Link, board: Board, listener: Listener, keys: Keys, settings: ProducerSettings
    ) -> None:
        self._link, self._board, self._listener = link, board, listener
        self._keys, self._settings = keys, settings
        self._disk = Disk(OutboxFile(settings.outbox or "", settings.namespace))
        self._send: Send
        self._cancel: Cancel
        self._starting = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._entries: dict[JobId, _Entry] = {}
        self._places: dict[str, _Entry] = {}  # where their idempotency keys are remembered
        self._bytes = 0
        self._due: list[tuple[float, JobId]] = []  # a heap; an entry counts if its job is still due then
        self._wake = asyncio.Event()

    def wire(self, send: Send, cancel: Cancel) -> None:
        """Say how jobs are sent to the server, and cancelled there."""
        self._send, self._cancel = send, cancel

    async def start(self) -> None:
        """Take the file and follow what is in it, unless that has begun. Raises `OutboxUnusable`."""
        async with self._starting:
            if self._closed:
                raise ProducerClosed
            if self._task is None:
                for row in await self._disk.open():
                    self._release(self._enter(_Entry(row)), 0.0)
                self._listener.on_end, self._listener.on_loss = self._hurry, self._hurry_all
                self._task = asyncio.create_task(self._follow(), name="laneway outbox")

    async def close(self) -> None:
        """Stop following, and give the file up. What is in it waits for the next producer."""
        async with self._starting:
            if self._closed:
                return
            self._closed = True
            if self._task is not None:
                self._task.cancel()
                await asyncio.gather(self._task, return_exceptions=True)
            await self._disk.close()

    # --- for a submit -----------------------------------------------------------
    async def submit(self, jobs: Sequence[Job], full_wait_s: float) -> list[Answer]:
        """Keep jobs, send them, and tell what became of each: what stays in the file is accepted.

        Raises:
            OutboxFull: a bound would be passed; nothing was kept.
            OutboxUnusable: see `start`, or the disk refuses.
        """
        await self.start()
        held = [self._places.get(self._place(job) or "") for job in jobs]
        fresh = [job for job, entry in zip(jobs, held, strict=True) if entry is None]
        answers = iter(await self._submit(fresh, full_wait_s) if fresh else ())
        return [
            next(answers) if entry is None else Submitted(entry.id, duplicate=True, confirmed=entry.confirmed)
            for entry in held
        ]

    async def _submit(self, jobs: Sequence[Job], full_wait_s: float) -> list[Answer]:
        rows = [self._row(job) for job in jobs]
        entries = self._admit([row for row, _ in rows])
        try:
            await self._disk.write([kept(row, data) for row, data in rows])
            try:
                answers: Sequence[Answer] = await self._send(jobs, full_wait_s)
            except QueueUnavailable as error:
                answers = [error] * len(jobs)
        except BaseException:  # nobody will learn the ids of these
            self._disk.soon([self._drop(entry) for entry in entries])
            raise
        changes: list[Change] = []
        told = [
            self._conclude(entry, job, answer, changes)
            for entry, job, answer in zip(entries, jobs, answers, strict=True)
        ]
        if changes:
            await self._disk.write(changes)
        return told

    def _admit(self, rows: Sequence[Row]) -> list[_Entry]:
        settings = self._settings
        if len(self._entries) + len(rows) > settings.outbox_jobs:
            raise OutboxFull(f"{settings.outbox_jobs} jobs")
        if self._bytes + sum(row.size for row in rows) > settings.outbox_bytes:
            raise OutboxFull(f"{settings.outbox_bytes} bytes")
        return [self._enter(_Entry(row, sending=True)) for row in rows]

    def _conclude(self, entry: _Entry, job: Job, answer: Answer, changes: list[Change]) -> Answer:
        first = self._settings.outbox_check_s[0]
        if isinstance(answer, QueueUnavailable | SubmitUncertain):
            self._release(entry, min(1.0, first))
            return Submitted(entry.id, confirmed=False)
        if isinstance(answer, Submitted) and answer.id == entry.id:
            entry.confirmed, entry.since_ms = True, _now_ms()
            self._release(entry, first)
            return answer
        changes.append(self._drop(entry))
        if isinstance(answer, Submitted) and answer.id not in self._entries:
            # An earlier job has the idempotency key. Whoever submitted it may be gone: from now on it is kept here.
            row, data = self._row(replace(job, id=answer.id))
            self._release(self._enter(_Entry(row)), first)
            changes.append(kept(row, data))
        return answer

    def _row(self, job: Job) -> tuple[Row, bytes]:
        own = job.reply_to == self._listener.output  # gone with this process: the next one has another
        data = encode_job(replace(job, reply_to=None) if own else job)
        return Row(job.id, self._place(job), _now_ms(), len(data)), data

    def _place(self, job: Job) -> str | None:
        key = job.idempotency_key
        return None if key is None else self._keys.of_job(job.id).idempotency(key)

    # --- for whoever asks -------------------------------------------------------
    async def holds(self, job_id: JobId) -> bool:
        """Whether the job is kept. Since it was asked for, it is looked at at once."""
        await self.start()
        self._hurry(job_id)
        return job_id in self._entries

    def saw(self, job_id: JobId) -> None:
        """Somebody here has read the job's result."""
        if (entry := self._entries.get(job_id)) is not None:
            entry.seen = True
            self._hurry(job_id)

    async def cancel(self, job_id: JobId) -> bool:
        """Note, on the disk, that the job is not wanted any more; False: it is not kept."""
        await self.start()
        entry = self._entries.get(job_id)
        if entry is not None:
            entry.cancelled = True
            await self._disk.write([cancelled(job_id)])
            self._hurry(job_id)
        return entry is not None

    async def settle(self, job_id: JobId, outcome: Outcome) -> None:
        """Store the outcome of a kept job that the server does not know. Raises `QueueUnavailable`."""
        for data in (await self._disk.read([job_id])).values():
            await self._settle(decode_job(data), outcome)

    # --- what is kept -----------------------------------------------------------
    def _enter(self, entry: _Entry) -> _Entry:
        self._entries[entry.id] = entry
        self._bytes += entry.size
        return entry

    def _drop(self, entry: _Entry) -> Change:
        if self._entries.pop(entry.id, None) is not None:
            self._bytes -= entry.size
        if entry.place is not None and self._places.get(entry.place) is entry:
            del self._places[entry.place]
        return dropped(entry.id)

    def _release(self, entry: _Entry, after_s: float) -> None:
        """Follow a job from now on."""
        entry.sending = False
        if entry.place is not None:
            self._places[entry.place] = entry
        self._later(entry, after_s)

    def _later(self, entry: _Entry, after_s: float) -> None:
        entry.pause = after_s
        entry.due = time.monotonic() + after_s
        heapq.heappush(self._due, (entry.due, entry.id))
        if self._due[0][1] == entry.id:
            self._wake.set()

    def _hurry(self, job_id: JobId) -> None:
        entry = self._entries.get(job_id)
        if entry is not None and not entry.sending:
            self._later(entry, 0.0)

    def _hurry_all(self) -> None:
        now = time.monotonic()
        self._due = [(now, entry.id) for entry in self._entries.values() if not entry.sending]
        heapq.heapify(self._due)
        for _, job_id in self._due:
            self._entries[job_id].due, self._entries[job_id].pause = now, 0.0
        self._wake.set()

    # --- following --------------------------------------------------------------
    async def _follow(self) -> None:
        trouble = 0.0
        batch: list[_Entry] = []
        while True:
            self._wake.clear()
            try:
                while batch := self._take():
                    await self._look(batch)
                    if trouble:
                        trouble = 0.0
                        self._hurry_all()
            except LanewayError:  # the server or the disk is away
                for entry in batch:
                    self._later(entry, 0.0)
                trouble = min(2.0, trouble * 2 or 0.1)
                await asyncio.sleep(trouble)
                continue
            pause = self._due[0][0] - time.monotonic() if self._due else None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()

    def _take(self) -> list[_Entry]:
        """Jobs that are due, as many as one round trip looks at."""
        now = time.monotonic()
        batch: dict[JobId, _Entry] = {}
        while self._due and self._due[0][0] <= now and len(batch) < _LOOKS:
            due, job_id = heapq.heappop(self._due)
            entry = self._entries.get(job_id)
            if entry is not None and entry.due == due and not entry.sending:
                batch[job_id] = entry
        return list(batch.values())

    async def _look(self, batch: Sequence[_Entry]) -> None:
        """Look at jobs, and do what is to be done."""
        first, longest = self._settings.outbox_check_s
        for entry in batch:
            self._later(entry, min(longest, max(first, 2 * entry.pause)))
        await self._let_go([entry for entry in batch if entry.seen])
        batch = [entry for entry in batch if entry.id in self._entries]
        if not batch:
            return
        if self._settings.listen:
            await self._listener.ensure()
        statuses = await self._board.read([entry.id for entry in batch])
        for status in statuses:
            if isinstance(status, LanewayError) and not isinstance(status, JobNotFound | UnreadableEntry):
                raise status
        lost: list[_Entry] = []
        ended: list[_Entry] = []
        alive: list[_Entry] = []
        for entry, status in zip(batch, statuses, strict=True):
            if isinstance(status, JobNotFound):
                lost.append(entry)
            elif isinstance(status, LanewayError) or status.state in FINAL_STATES:
                ended.append(entry)
            else:
                alive.append(entry)
        await self._let_go(ended)
        await self._leave(alive)
        await self._miss(lost)

    async def _let_go(self, ended: Sequence[_Entry]) -> None:
        """Forget jobs that have ended, but those whose outcome somebody here has yet to read."""
        if changes := [self._drop(entry) for entry in ended if not self._listener.awaited(entry.id)]:
            await self._disk.write(changes)

    async def _leave(self, alive: Sequence[_Entry]) -> None:
        """Leave jobs to the server, but those that are not wanted any more."""
        for entry in alive:
            entry.confirmed = True
            if entry.cancelled:
                with contextlib.suppress(JobNotFound):
                    await self._cancel(entry.id)

    async def _miss(self, lost: Sequence[_Entry]) -> None:
        """Send again, or settle, what the server does not know."""
        if not lost:
            return
        if any(entry.confirmed for entry in lost):
            self._hurry_all()  # whatever took these may have taken more
        first, longest = self._settings.outbox_check_s
        bodies = await self._disk.read([entry.id for entry in lost])
        again: list[tuple[_Entry, Job]] = []
        for entry in lost:
            entry.confirmed = False
            self._later(entry, longest)
            try:
                job = decode_job(bodies[entry.id])
            except (KeyError, UnreadableEntry):  # a newer release's waits for one
                continue
            job = self._as_of_now(entry, job)
            if entry.cancelled:
                await self._settle(job, Cancelled())
            elif job.deadline_ms == 0:
                await self._settle(job, Expired())
            else:
                again.append((entry, job))
        if not again:
            return
        answers = await self._send([job for _, job in again], 0.0)
        for (entry, _), answer in zip(again, answers, strict=True):
            self._later(entry, answer.retry_after if isinstance(answer, QueueFull) else first)
            if isinstance(answer, Submitted) and answer.id != entry.id:
                await self._copy(entry.id, answer.id)
            else:
                entry.confirmed = isinstance(answer, Submitted)

    def _as_of_now(self, entry: _Entry, job: Job) -> Job:
        """The job as it is to be sent now: its deadline counts from its first acceptance. 0: it has passed."""
        if job.reply_to is None and (self._settings.listen or job.stream):
            job = replace(job, reply_to=self._listener.output)
        if job.deadline_ms is None:
            return job
        return replace(job, deadline_ms=max(0, entry.since_ms + job.deadline_ms - _now_ms()))

    async def _copy(self, job_id: JobId, other: JobId) -> None:
        """Give a job the outcome of the one that has its idempotency key, once there is one."""
        (status,) = await self._board.read([other])
        if not isinstance(status, LanewayError) and status.result is not None:
            await self._store(replace(status.result, job_id=job_id))

    async def _settle(self, job: Job, outcome: Outcome) -> None:
        await self._store(Result(job_id=job.id, outcome=outcome, model=job.model, metadata=job.metadata))

    async def _store(self, result: Result) -> None:
        key = self._keys.of_job(result.job_id).result(result.job_id)
        ttl_ms = round(self._settings.result_ttl_s * 1000)
        await self._link.ask("SET", key, encode(result), "NX", "PX", ttl_ms)
        self._listener.poke(result.job_id)
        self._hurry(result.job_id)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

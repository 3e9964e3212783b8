"""From an entry of a lane to a claim: here bytes end."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from laneway.schemas.errors import UnreadableEntry
from laneway.schemas.ids import JobId
from laneway.schemas.keys import Lane
from laneway.schemas.outcome import Failed, JobError, Result, Timeline
from laneway.schemas.record import ENTRY_DATA, ENTRY_JOB_ID, ENTRY_SUBMITTED, Kept
from laneway.schemas.wire import decode_job, decode_kept
from laneway.worker.ports import Claim, Unreadable

_LIKE_AN_ID = re.compile(rb"[A-Za-z0-9-]{1,64}")  # as in pull.lua: anything else was not made here


class RawEntry(Struct, frozen=True, kw_only=True):
    """What the pull script tells of one entry."""

    lane: Lane
    entry: str
    job_id: JobId | None
    data: bytes | None
    submitted_ms: int
    attempt: int
    failures: int
    outputs: tuple[str, ...]
    cancelled: bool
    losses: int
    evidence: int = 0
    isolated: bool = False


def raw_entry(reply: Sequence[Any], lanes: Sequence[Lane]) -> RawEntry:
    """One job of the pull script's reply."""
    index, entry, pairs, attempt, failures, outputs, cancelled, losses, *more = reply
    fields = dict(zip(pairs[::2], pairs[1::2], strict=False))
    job_id = fields.get(ENTRY_JOB_ID.encode(), b"")
    submitted = fields.get(ENTRY_SUBMITTED.encode(), b"")
    known = _LIKE_AN_ID.fullmatch(job_id) is not None
    return RawEntry(
        lane=lanes[index],
        entry=entry.decode(),
        job_id=JobId(job_id.decode()) if known else None,
        data=fields.get(ENTRY_DATA.encode()),
        submitted_ms=int(submitted) if submitted.isdigit() else int(entry.split(b"-")[0]),
        attempt=attempt,
        failures=failures,
        outputs=tuple(outputs.decode(errors="replace").split()),
        cancelled=bool(cancelled),
        losses=losses,
        evidence=more[0] if more else 0,
        isolated=bool(more and more[1]),
    )


def read_entry(
    raw: RawEntry, data: bytes | None, now_ms: int, kept: Sequence[bytes] = ()
) -> Claim | Unreadable:
    """The claim on the job in `data` (the entry's own, or what lay beside the lane), or why there is none."""
    if raw.job_id is None:
        return _unreadable(raw, "an entry that is not a job")
    if data is None:
        return _unreadable(raw, "the body of the job has vanished")
    try:
        job = decode_job(data)
    except UnreadableEntry as error:
        return _unreadable(raw, str(error))
    if job.id != raw.job_id:
        return _unreadable(raw, "an entry that names another job than it holds")
    deadline = None
    if job.deadline_ms is not None:
        deadline = time.monotonic() + (raw.submitted_ms + job.deadline_ms - now_ms) / 1000
    return Claim(
        job=job,
        lane=raw.lane,
        entry=raw.entry,
        attempt=raw.attempt,
        failures=raw.failures,
        losses=raw.losses,
        evidence=raw.evidence,
        isolated=raw.isolated,
        submitted_ms=raw.submitted_ms,
        claimed_ms=now_ms,
        deadline=deadline,
        cancelled=raw.cancelled,
        outputs=raw.outputs,
        kept=_read_kept(kept),
    )


def _read_kept(kept: Sequence[bytes]) -> tuple[Kept, ...]:
    try:
        return tuple(map(decode_kept, kept))
    except UnreadableEntry:
        return ()  # of a newer release: the job can always start again


def unreadable_result(entry: Unreadable, job_id: JobId, model: str, now_ms: int) -> Result:
    """What the consumer of a job gets whose entry cannot be read."""
    error = JobError(code="unreadable", message=f"the job cannot be read: {entry.reason}")
    return Result(
        job_id=job_id,
        outcome=Failed(error=error),
        model=model,
        attempt=entry.attempt,
        timeline=Timeline(ended_ms=now_ms),
    )


def _unreadable(raw: RawEntry, reason: str) -> Unreadable:
    return Unreadable(
        lane=raw.lane,
        entry=raw.entry,
        reason=reason,
        job_id=raw.job_id,
        attempt=raw.attempt,
        outputs=raw.outputs,
    )

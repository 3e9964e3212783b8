"""What Redis holds about a job beside its body and its result: the fields of lane and output entries and of its record.

Lua scripts on both sides write these names as they stand here.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from laneway.schemas.ids import JobId
from laneway.schemas.state import JobState

ENTRY_JOB_ID = "j"
"""Entry field: the job's id."""
ENTRY_DATA = "d"
"""Entry field: the encoded job; absent when it lies beside the lane under `PartitionKeys.body`."""
ENTRY_SUBMITTED = "t"
"""Entry field: acceptance in milliseconds of Redis' clock. Kept when a job returns to its lane."""


OUTPUT_EVENTS = "e"
"""Field of an output stream's entry: `wire.encode` of the events that one engine step had for this output."""


class Kept(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    rename={
        "attempt": "a",
        "text": "t",
        "token_ids": "i",
        "finish_reason": "f",
        "stop_reason": "s",
        "first_token_ms": "m",
        "lora_digest": "l",
    },
):
    """A token event of an answer in the making. Its place in the list under `PartitionKeys.kept` is its `seq`."""

    attempt: int
    """Attempt that generated it. That of event 0 is where the answer began."""
    text: str = ""
    token_ids: tuple[int, ...] = ()
    finish_reason: str | None = None
    """On the last event of an answer that came to its natural end."""
    stop_reason: str | int | None = None
    first_token_ms: int = 0
    """On event 0: when it was generated, in milliseconds of Redis' clock since 1970."""
    lora_digest: str = ""
    """On event 0: content digest of the adapter that answers."""


class JobRecord(Struct, frozen=True, kw_only=True):
    """The hash under `PartitionKeys.job`. It may vanish (its TTL, a flush): then only the result counts."""

    job_id: JobId
    state: JobState = JobState.QUEUED
    lane: str = ""
    """Name of the lane, such as `latency:short`."""
    entry: str = ""
    attempt: int = 0
    """Claims so far: the fence. Only the attempt that equals it may settle the job."""
    failures: int = 0
    """Attempts that ended in an error."""
    losses: int = 0
    """Leases that lapsed with the job in hand."""
    owner: str = ""
    """Worker of the latest claim."""
    submitted: int = 0
    claimed: int = 0
    started: int = 0
    ended: int = 0
    outputs: str = ""
    """Output streams that want the job's events, separated by blanks."""
    error: str = ""
    """Code of the last failed attempt."""


def read_record(job_id: JobId, fields: Mapping[bytes, bytes]) -> JobRecord | None:
    """The record in a hash as Redis returns it; None when there is none. Unknown fields are ignored."""
    if not fields:
        return None
    text = {name.decode(): value.decode(errors="replace") for name, value in fields.items()}
    known = {name: text[name] for name in JobRecord.__struct_fields__ if name in text}
    if known.get("state") not in _STATES:
        known.pop("state", None)
    for name in _NUMBERS:
        if not known.get(name, "0").isdecimal():
            del known[name]
    return msgspec.convert({**known, "job_id": job_id}, JobRecord, strict=False)


_STATES = {state.value for state in JobState}
_NUMBERS = ("attempt", "failures", "losses", "submitted", "claimed", "started", "ended")

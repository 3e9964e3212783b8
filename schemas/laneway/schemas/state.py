"""The life of a job: its states and the only moves between them."""

from __future__ import annotations

from enum import Enum

from laneway.schemas.errors import IllegalTransition


class JobState(Enum):
    """Where a job is. `schemas/README.md` draws the same table."""

    QUEUED = "queued"
    """In a lane. In: submit, a hand-back, a lapsed lease. Out: a worker claims it, a cancel, its deadline."""

    CLAIMED = "claimed"
    """Owned by one worker under a lease, not yet in the engine. In: claim or reclaim. Out: the engine takes it."""

    RUNNING = "running"
    """In the engine. In: the worker starts the attempt. Out: an outcome, a retry, a hand-back, a lapsed lease."""

    RETRYING = "retrying"
    """Waiting for its back-off to pass after an engine or infrastructure error. Out: back to its lane."""

    COMPLETED = "completed"
    """Final: the requested thing, from the requested adapter, to a natural end."""

    FAILED = "failed"
    """Final: the job's own error, or attempts used up (then a dead-letter entry exists too)."""

    CANCELLED = "cancelled"
    """Final: somebody asked for it before it ended."""

    EXPIRED = "expired"
    """Final: its deadline passed before it ended."""


FINAL_STATES = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED})

_S = JobState
TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    _S.QUEUED: frozenset({_S.CLAIMED, _S.CANCELLED, _S.EXPIRED, _S.FAILED}),
    _S.CLAIMED: frozenset(
        {_S.RUNNING, _S.QUEUED, _S.CLAIMED, _S.RETRYING, _S.FAILED, _S.CANCELLED, _S.EXPIRED}
    ),
    _S.RUNNING: frozenset(
        {_S.COMPLETED, _S.FAILED, _S.CANCELLED, _S.EXPIRED, _S.RETRYING, _S.QUEUED, _S.CLAIMED}
    ),
    _S.RETRYING: frozenset({_S.QUEUED, _S.CLAIMED, _S.CANCELLED, _S.EXPIRED, _S.FAILED}),
    _S.COMPLETED: frozenset(),
    _S.FAILED: frozenset(),
    _S.CANCELLED: frozenset(),
    _S.EXPIRED: frozenset(),
}


def move(before: JobState, after: JobState) -> JobState:
    """`after`, if a job may go there from `before`.

    Raises:
        IllegalTransition: the table has no such move.
    """
    if after not in TRANSITIONS[before]:
        raise IllegalTransition(before.value, after.value)
    return after

"""Why a job waits, in one line."""

from __future__ import annotations

import pytest

from laneway.producer.board import JobStatus
from laneway.producer.waiting import why
from laneway.schemas.cards import WorkerCard
from laneway.schemas.ids import WorkerId, new_job_id
from laneway.schemas.record import JobRecord
from laneway.schemas.state import FINAL_STATES, JobState

JOB = new_job_id("demo", 0)


def status(state: JobState, owner: str = "") -> JobStatus:
    record = JobRecord(job_id=JOB, state=state, lane="throughput:long", owner=owner)
    return JobStatus(job_id=JOB, state=state, record=record)


def card(name: str, *, model: str = "demo", phase: str = "ready", free: int = 0, **waits: str) -> WorkerCard:
    told = {f"throughput.{bucket}": reason for bucket, reason in waits.items()}
    return WorkerCard(id=WorkerId(name), model=model, phase=phase, seats=4, seats_free=free, waits=told)


def test_a_job_in_hand_waits_for_what_its_own_worker_says() -> None:
    """Of its own lane; where that says nothing, the job is about to go in."""
    cards = [card("a", long="budget"), card("b", long="kv", short="no seat")]
    assert why(status(JobState.CLAIMED, "b"), cards) == "at the gate of b: kv"
    assert why(status(JobState.CLAIMED, "c"), cards) == "at the gate of c: about to go in"


def test_a_job_in_its_lane_waits_for_the_workers_of_its_model() -> None:
    """Those of other models do not count, nor do those that are not ready."""
    waits = why(
        status(JobState.QUEUED), [card("a", long="budget"), card("b", free=1), card("c", model="other")]
    )
    assert (
        waits == "in its lane; 1 of 2 workers have no free seat; the first of its lane wait there for: budget"
    )
    assert why(status(JobState.QUEUED), [card("c", model="other")]) == "no worker of its model is alive"
    starting = [card("a", phase="starting")]
    assert why(status(JobState.QUEUED), starting) == "no worker of its model is ready: starting"


@pytest.mark.parametrize("state", [JobState.RUNNING, *sorted(FINAL_STATES, key=lambda state: state.value)])
def test_who_does_not_wait_has_no_reason(state: JobState) -> None:
    """It runs, or has ended."""
    assert why(status(state, "a"), [card("a", long="budget")]) == ""

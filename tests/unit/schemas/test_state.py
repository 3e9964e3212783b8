"""The table of moves, walked pair by pair."""

from __future__ import annotations

import itertools

import pytest

from laneway.schemas import FINAL_STATES, JobState
from laneway.schemas.errors import IllegalTransition
from laneway.schemas.state import TRANSITIONS, move

LIVE = [state for state in JobState if state not in FINAL_STATES]


@pytest.mark.parametrize(
    ("before", "after"), [*itertools.product(JobState, JobState)], ids=lambda state: state.value
)
def test_exactly_the_moves_of_the_table_are_legal(before: JobState, after: JobState) -> None:
    """Every pair of states is either in the table, or refused by name."""
    if after in TRANSITIONS[before]:
        assert move(before, after) is after
    else:
        with pytest.raises(IllegalTransition, match=f"from {before.value} to {after.value}"):
            move(before, after)


def test_the_table_knows_every_state() -> None:
    """A state added without its moves is noticed."""
    assert set(TRANSITIONS) == set(JobState)


@pytest.mark.parametrize("state", [*FINAL_STATES], ids=lambda state: state.value)
def test_nothing_leaves_a_final_state(state: JobState) -> None:
    """A job ends once."""
    assert TRANSITIONS[state] == frozenset()


@pytest.mark.parametrize("state", LIVE, ids=lambda state: state.value)
def test_a_live_job_can_be_cancelled_expire_and_fail(state: JobState) -> None:
    """No state is a trap: whatever a job waits for, it can be ended."""
    assert {JobState.CANCELLED, JobState.EXPIRED, JobState.FAILED} <= TRANSITIONS[state]


def test_only_a_running_job_completes() -> None:
    """There is no way to an answer around the engine."""
    assert [state for state in JobState if JobState.COMPLETED in TRANSITIONS[state]] == [JobState.RUNNING]


def test_every_state_is_reachable_from_the_lane() -> None:
    """No state exists that a submitted job can't get into."""
    seen, todo = set(), [JobState.QUEUED]
    while todo:
        state = todo.pop()
        if state not in seen:
            seen.add(state)
            todo += TRANSITIONS[state]
    assert seen == set(JobState)

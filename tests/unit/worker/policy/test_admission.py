"""What may be claimed, whatever the worker holds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.schemas.job import Bucket, SloClass
from laneway.schemas.keys import lanes
from laneway.worker.policy.admission import (
    WINDOW_RANGE,
    ClaimPlan,
    Ledger,
    may_hold_more,
    plan_claim,
    seat_reserve,
    window_of,
)

SEATS = st.integers(0, 512)
WINDOWS = st.integers(1, 64)


@st.composite
def ledgers(draw: st.DrawFn) -> Ledger:
    """Any state of a worker; jobs with several answers may overfill its engine."""
    waiting = draw(st.dictionaries(st.sampled_from(Bucket), st.integers(0, 64)))
    return Ledger(seats=draw(SEATS), latency=draw(SEATS), throughput=draw(SEATS), waiting=waiting)


def plan(ledger: Ledger, window: int, turn: int = 0, most: int = 32) -> ClaimPlan:
    return plan_claim(ledger, window=window, partition=3, turn=turn, most=most)


@given(ledgers(), WINDOWS, st.integers(1, 1024))
def test_a_latency_job_is_claimed_only_into_a_free_seat(ledger: Ledger, window: int, most: int) -> None:
    """Late binding: another worker may have a seat now. Their lanes come first, and one claim stays bounded."""
    made = plan(ledger, window, most=most)
    assert made.stages[0].lanes == lanes(3)[:3]
    assert made.stages[0].cap == min(ledger.free, most)
    assert made.total <= most


@given(ledgers(), WINDOWS)
@pytest.mark.case("A11")
def test_nobody_holds_more_than_its_seats_and_its_window(ledger: Ledger, window: int) -> None:
    """Whatever a claim brings, each throughput lane has at most its window in this worker, waiting for a seat."""
    for stage in plan(ledger, window).stages[1:]:
        waiting = ledger.waiting.get(stage.lanes[0].bucket, 0)
        assert stage.cap + waiting <= max(window, waiting)


@given(ledgers(), WINDOWS)
def test_no_bucket_crowds_out_another(ledger: Ledger, window: int) -> None:
    """However many jobs of one bucket wait here, those of another are still claimed: there is something to choose from."""
    for stage in plan(ledger, window, most=1024).stages[1:]:
        assert bool(stage.cap) == (ledger.waiting.get(stage.lanes[0].bucket, 0) < window)


@given(st.integers(1, 4096))
def test_the_window_is_small(seats: int) -> None:
    """Unless set, all three lanes together hold less than a fifth of the seats, but two jobs each, and at most 32."""
    window = window_of(seats, 0)
    assert window == 2 or 3 * window <= seats / 5 + 3
    assert WINDOW_RANGE[0] <= window <= WINDOW_RANGE[1]
    assert window_of(seats, 7) == 7


@given(st.integers(2, 512), st.floats(0, 0.9))
def test_one_seat_at_least_is_kept(seats: int, share: float) -> None:
    """A share of nothing still keeps a seat, where there are two."""
    assert 1 <= seat_reserve(seats, share) < seats


@given(ledgers(), WINDOWS, st.integers(0, 10_000))
@pytest.mark.case("C39")
def test_every_throughput_bucket_has_its_turn(ledger: Ledger, window: int, turn: int) -> None:
    """In three claims in a row each bucket goes first once, so none starves behind another."""
    made = [plan(ledger, window, turn + step).stages[1:] for step in range(3)]
    assert {stages[0].lanes[0].bucket for stages in made} == set(Bucket)
    assert all(lane.slo is SloClass.THROUGHPUT for stages in made for stage in stages for lane in stage.lanes)


@given(ledgers(), WINDOWS, st.data())
def test_a_lane_that_gave_all_it_was_asked_for_is_asked_again(
    ledger: Ledger, window: int, data: st.DataObject
) -> None:
    """As long as it does, it may have more; a claim that brought less than each cap emptied the lanes."""
    made = plan(ledger, window)
    taken = {stage.lanes[0]: data.draw(st.integers(0, stage.cap)) for stage in made.stages}
    full = any(stage.cap and taken[stage.lanes[0]] == stage.cap for stage in made.stages)
    assert may_hold_more(made, taken) is (full or 0 < made.total <= sum(taken.values()))

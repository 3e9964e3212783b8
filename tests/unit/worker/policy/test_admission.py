"""What may be claimed, whatever the engine holds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from laneway.schemas.job import SloClass
from laneway.schemas.keys import lanes
from laneway.worker.policy.admission import ClaimPlan, Ledger, plan_claim, seat_reserve

SEATS = st.integers(0, 512)
SHARES = st.floats(0, 0.9)


@st.composite
def ledgers(draw: st.DrawFn) -> Ledger:
    """Any state of an engine; jobs with several answers may overfill it."""
    return Ledger(seats=draw(SEATS), latency=draw(SEATS), throughput=draw(SEATS))


def plan(ledger: Ledger, share: float, turn: int = 0, most: int = 32) -> ClaimPlan:
    return plan_claim(ledger, reserve=seat_reserve(ledger.seats, share), partition=3, turn=turn, most=most)


@given(ledgers(), SHARES, st.integers(1, 1024))
def test_no_more_is_claimed_than_there_are_seats(ledger: Ledger, share: float, most: int) -> None:
    """Late binding: every claimed job has a seat, and one claim stays bounded."""
    made = plan(ledger, share, most=most)
    assert 0 <= made.total <= min(ledger.free, most)
    assert all(0 <= stage.cap <= made.total for stage in made.stages)


@given(ledgers(), SHARES)
def test_latency_jobs_come_first_and_may_have_every_free_seat(ledger: Ledger, share: float) -> None:
    """The first stage holds the latency lanes, short first, without a cap of its own."""
    first = plan(ledger, share).stages[0]
    assert first.lanes == lanes(3)[:3]
    assert first.cap == plan(ledger, share).total


@given(ledgers(), SHARES)
def test_throughput_jobs_leave_the_reserve_free(ledger: Ledger, share: float) -> None:
    """After any claim of throughput jobs, the reserve is free or taken by latency jobs."""
    reserve = seat_reserve(ledger.seats, share)
    cap = plan(ledger, share).stages[1].cap
    if cap:
        assert ledger.seats - ledger.throughput - cap >= reserve


@given(st.integers(1, 512), SHARES)
def test_an_idle_engine_takes_throughput_work(seats: int, share: float) -> None:
    """However few seats there are, throughput work is never shut out for good."""
    assert plan(Ledger(seats=seats), share).stages[1].cap >= 1


@given(st.integers(2, 512), SHARES)
def test_one_seat_at_least_is_kept(seats: int, share: float) -> None:
    """A share of nothing still keeps a seat, where there are two."""
    assert 1 <= seat_reserve(seats, share) < seats


@given(ledgers(), SHARES, st.integers(0, 10_000))
def test_every_throughput_bucket_has_its_turn(ledger: Ledger, share: float, turn: int) -> None:
    """In three claims in a row each bucket goes first once, so none starves behind another."""
    stages = [plan(ledger, share, turn + step).stages[1] for step in range(3)]
    assert {stage.lanes[0].bucket for stage in stages} == {lane.bucket for lane in lanes(3)}
    assert all(lane.slo is SloClass.THROUGHPUT for stage in stages for lane in stage.lanes)
    assert all(len(set(stage.lanes)) == 3 for stage in stages)

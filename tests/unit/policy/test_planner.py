"""What goes into the engine next: invariants of every plan."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.policy.strategies import KV_TOKENS, candidate, candidates, engine

from laneway.schemas.job import SloClass
from laneway.worker.policy import headroom, planner
from laneway.worker.policy.order import AGE_LIMIT_S, Band, Candidate
from laneway.worker.policy.planner import Reason, State

LATENCY = SloClass.LATENCY


def ids(plan: planner.Plan) -> list[str]:
    return [admission.candidate.id for admission in plan.admit]


def recount(state: State) -> None:
    """The sums of the ledger are those of its holdings, and nothing is below zero or above the engine's limits."""
    room, holdings = state.headroom, list(state.headroom.holdings.values())
    assert room.latency_seats == sum(h.candidate.seats for h in holdings if h.candidate.latency)
    assert room.throughput_seats == sum(h.candidate.seats for h in holdings if not h.candidate.latency)
    assert room.backlog == sum(h.candidate.prompt_tokens for h in holdings if not h.prefilled)
    assert room.decodes == sum(h.candidate.seats for h in holdings if h.prefilled)
    assert abs(room.kv - sum(headroom.kv_of(h.candidate) for h in holdings)) < 1e-6
    assert min(room.latency_seats, room.throughput_seats, room.promoted_seats, room.backlog, room.free) >= 0
    assert room.latency_seats + room.throughput_seats <= max(room.seats, 3)  # 3: a wide job in a tiny engine
    assert len(state.slots.in_flight.keys() | state.slots.pinned) <= state.slots.most


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_the_ledger_balances_and_no_adapter_exceeds_the_slots(data: st.DataObject) -> None:
    """Through any sequence of plans, first tokens and ends: sums match, nothing is negative, slots hold."""
    state = engine(seats=data.draw(st.integers(1, 12)), max_loras=data.draw(st.integers(1, 3)))
    waiting: list[Candidate] = data.draw(candidates(most=20))
    now = 50.0
    for _ in range(6):
        plan = planner.plan(state, now, waiting, kv_used=data.draw(st.integers(0, KV_TOKENS)))
        recount(state)
        assert len(set(ids(plan))) == len(plan.admit)
        waiting = [job for job in waiting if job.id not in set(ids(plan))]
        for job_id in plan.preempt:
            assert not state.headroom.holdings[job_id].candidate.latency
            planner.left(state, job_id, now, generated=1)
        for job_id in list(state.headroom.holdings):
            headroom.first_token(state.headroom, job_id)
            if data.draw(st.booleans()):
                planner.left(state, job_id, now, generated=data.draw(st.integers(0, 600)))
        recount(state)
        now += data.draw(st.floats(0.01, 100))


@given(candidates(most=12))
def test_an_empty_engine_never_stays_idle_while_a_job_waits(waiting: list[Candidate]) -> None:
    """Work conservation: something is admitted, whatever it needs."""
    plan = planner.plan(engine(), 50.0, waiting, kv_used=0)
    assert bool(plan.admit) == bool(waiting)


@given(candidates(most=20), st.integers(4, 16))
def test_whoever_waits_has_a_reason_that_holds(waiting: list[Candidate], seats: int) -> None:
    """A lane's head that stays while a seat is free was kept out by KV, a slot, the feed, the pace or its turn."""
    state = engine(seats=seats)
    plan = planner.plan(state, 50.0, waiting, kv_used=0)
    left = [job for job in waiting if job.id not in set(ids(plan))]
    assert plan.waits.keys() == {(job.slo, job.bucket) for job in left}
    for (slo, _), reason in plan.waits.items():
        if slo is LATENCY:
            assert reason in {Reason.SEAT, Reason.KV, Reason.ADAPTER}
        if reason is Reason.BUDGET:
            assert state.headroom.backlog >= state.feed_steps * plan.budget.tokens


def test_without_latency_work_throughput_takes_every_seat_but_one() -> None:
    """The reserve follows the traffic: with none, a single seat is kept."""
    state = engine(seats=8)
    for moment in range(20):
        waiting = [candidate(8 * moment + i) for i in range(8)]
        planner.plan(state, float(moment), waiting, kv_used=0)
        for job_id in state.headroom.holdings:
            headroom.first_token(state.headroom, job_id)
    assert state.headroom.throughput_seats == 7


@pytest.mark.case("C38")
def test_a_latency_job_takes_the_kept_seat_at_once() -> None:
    """Latency jobs go into any free seat, earliest due first."""
    state = engine(seats=4)
    planner.plan(state, 0.0, [candidate(i) for i in range(9)], kv_used=0)
    late = candidate(20, slo=LATENCY, since=0.1, due=2.0)
    soon = candidate(21, slo=LATENCY, since=0.2, due=1.0)
    plan = planner.plan(state, 0.2, [late, soon], kv_used=0)
    assert ids(plan) == ["21"]
    assert plan.waits == {(LATENCY, late.bucket): Reason.SEAT}


@pytest.mark.case("C39")
def test_nobody_starves_behind_a_stream_of_better_placed_jobs() -> None:
    """A long prompt that the KV cache has no room for gets in at last: once it has waited `AGE_LIMIT_S`, nothing
    passes it any more, so that it waits one residence longer at most."""
    state = engine(seats=8, kv_tokens=4000)
    big = candidate(0, prompt_tokens=3000, output_tokens=500, most_tokens=500)
    now, number, admitted_at, residence = 0.0, 1, None, 10.0
    held: dict[str, float] = {}
    while admitted_at is None and now < 2 * AGE_LIMIT_S:
        for job_id in [j for j, since in held.items() if now - since >= residence]:
            planner.left(state, job_id, now, generated=100)
            del held[job_id]
        small = [candidate(number + i, since=now) for i in range(12)]
        number += 12
        plan = planner.plan(state, now, [big, *small], kv_used=0)
        for job_id in ids(plan):
            headroom.first_token(state.headroom, job_id)
            held[job_id] = now
        admitted_at = now if "0" in ids(plan) else None
        now += 1.0
    assert admitted_at is not None
    assert admitted_at <= AGE_LIMIT_S + residence + 1


def test_a_busy_adapter_gives_way_to_a_cold_one() -> None:
    """A hot adapter that always has work is drained for a job whose adapter has no slot."""
    state = engine(seats=8, max_loras=1)
    cold = candidate(0, adapter="cold")
    now, number = 0.0, 1
    planner.plan(state, now, [candidate(99, adapter="hot")], kv_used=0)
    held = {"99": now}
    admitted: list[str] = []
    while "0" not in admitted and now < 60:
        now += 0.5
        hot = [candidate(number + i, adapter="hot", since=now) for i in range(4)]
        number += 4
        for job_id in [j for j, since in held.items() if now - since >= 5.0]:
            planner.left(state, job_id, now, generated=100)
            del held[job_id]
        admitted = ids(planner.plan(state, now, [cold, *hot], kv_used=0))
        for job_id in admitted:
            headroom.first_token(state.headroom, job_id)
            held[job_id] = now
    assert "0" in admitted
    assert now <= 2.0 + 5.0 + 1.0  # COLD_WAIT_S, the residence of what runs, and a plan


def test_a_job_near_its_deadline_goes_ahead_and_a_hopeless_one_last() -> None:
    """Promotion by slack, relegation of what cannot be in time."""
    state = engine(seats=4)
    usual = candidate(0)
    near = candidate(1, due=5.0)
    hopeless = candidate(2, due=0.05, least_tokens=90)
    plan = planner.plan(state, 0.0, [usual, hopeless, near], kv_used=0)
    assert [(a.candidate.id, a.band) for a in plan.admit] == [
        ("1", Band.URGENT),
        ("0", Band.USUAL),
        ("2", Band.RELEGATED),
    ]


def test_the_feed_follows_the_engine() -> None:
    """Late binding: no more prompts inside the engine than a few steps compute."""
    state = engine(seats=256, kv_tokens=1_000_000)
    plan = planner.plan(state, 0.0, [candidate(i, prompt_tokens=1000) for i in range(100)], kv_used=0)
    assert len(plan.admit) == 5  # 2 steps of 2,048 tokens, exceeded by one job at most
    assert set(plan.waits.values()) == {Reason.BUDGET}


def test_tenants_share_by_service_not_by_demand() -> None:
    """One tenant sends forty jobs, the other four: they are served alike."""
    state = engine(seats=9, kv_tokens=1_000_000)
    jobs = [candidate(i, tenant="many") for i in range(40)]
    jobs += [candidate(100 + i, tenant="few") for i in range(4)]
    plan = planner.plan(state, 0.0, jobs, kv_used=0)
    tenants = [a.candidate.tenant for a in plan.admit]
    assert tenants.count("many") == tenants.count("few") == 4

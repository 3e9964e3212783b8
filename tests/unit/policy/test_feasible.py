"""What a deadline must leave at least, and what becomes of a job whose deadline does not."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.policy.strategies import candidate, candidates, engine

from laneway.schemas.cards import Floor, ModelCard
from laneway.schemas.job import SloClass
from laneway.worker.policy import planner
from laneway.worker.policy.cost import CostModel
from laneway.worker.policy.feasible import floor_of
from laneway.worker.policy.order import Band, Candidate, Pace, is_hopeless, rank

seconds = st.floats(0, 0.1)
models = st.builds(CostModel, base_s=seconds, prefill_s=seconds, decode_s=seconds, kv_s=seconds)
floors = st.builds(Floor, prompt_s=seconds, token_s=seconds)


@given(
    models, st.integers(1, 4000), st.integers(1, 500), st.integers(1, 512), st.booleans(), st.integers(1, 4)
)
def test_no_run_on_an_idle_engine_is_faster_than_the_floor(
    model: CostModel, prompt: int, answer: int, step: int, prefix_cache: bool, burst: int
) -> None:
    """Whatever the steps cost, however the prompt is cut into them, cached or not, with or without speculation."""
    floor = floor_of(model, prefix_cache=prefix_cache, burst=burst)
    computed = 1 if prefix_cache else prompt
    prefill = sum(model.step_s(min(step, computed - done), 0, 0) for done in range(0, computed, step))
    decodes = math.ceil(max(0, answer - burst) / burst) * model.step_s(0, 1, prompt)
    assert floor.seconds(prompt, answer) <= prefill + decodes + 1e-9


@given(floors, st.integers(0, 4000), st.integers(0, 500), st.integers(0, 500))
def test_the_floor_rises_with_what_must_come(floor: Floor, prompt: int, answer: int, more: int) -> None:
    """A longer prompt or answer never takes less; an answer has one token at least."""
    assert floor.seconds(prompt + more, answer) >= floor.seconds(prompt, answer)
    assert floor.seconds(prompt, answer + more) >= floor.seconds(prompt, answer) >= floor.token_s


def test_without_a_profile_nothing_is_too_short() -> None:
    """An engine that was not measured promises nothing and refuses nothing."""
    assert floor_of(None, prefix_cache=False, burst=1) == Floor()
    assert not is_hopeless(candidate(0, deadline=1.0, floor_s=Floor().seconds(9000, 600)), now=1.0)


@given(st.lists(st.none() | floors, min_size=1, max_size=5), st.integers(0, 4000), st.integers(0, 500))
def test_a_models_floor_holds_for_each_of_its_workers(
    told: list[Floor | None], prompt: int, answer: int
) -> None:
    """In whatever order they tell; one that has not told yet changes nothing."""
    card = ModelCard(name="demo")
    for floor in told:
        card = ModelCard(name="demo", floor=floor).after(card)
    known = [floor for floor in told if floor is not None]
    assert (card.floor is None) == (not known)
    for floor in known:
        assert card.floor is not None
        assert card.floor.seconds(prompt, answer) <= floor.seconds(prompt, answer)


@given(st.sampled_from(SloClass), st.floats(0, 100), st.floats(0, 100), st.floats(0, 10))
def test_whoever_cannot_end_in_time_is_served_last(
    slo: SloClass, now: float, deadline: float, floor_s: float
) -> None:
    """A latency job too, whatever it was promised for its first token; and nobody else for that reason."""
    job = candidate(0, slo=slo, since=0.0, due=deadline, deadline=deadline, floor_s=floor_s, prompt_tokens=1)
    band, _ = rank(job, now, Pace(0.0, 0.0))
    assert is_hopeless(job, now) == (deadline - now < floor_s)
    if is_hopeless(job, now):
        assert band is Band.RELEGATED
    elif slo is SloClass.LATENCY:
        assert band is Band.URGENT


@given(candidates(most=12), st.floats(0.001, 5))
def test_a_hopeless_job_takes_nothing_from_the_others(waiting: list[Candidate], floor_s: float) -> None:
    """With a hopeless latency job among them, exactly those go in that would without it, before it."""
    hopeless = candidate(99, slo=SloClass.LATENCY, since=0.0, deadline=50.0, floor_s=floor_s)
    alone = planner.plan(engine(), 50.0, waiting, kv_used=0)
    beside = planner.plan(engine(), 50.0, [hopeless, *waiting], kv_used=0)
    admitted = [admission.candidate.id for admission in beside.admit]
    assert [job for job in admitted if job != "99"] == [
        a.candidate.id for a in alone.admit if a.candidate.id != "99"
    ]

"""The cost model: fitted from a profile, refined by the running engine."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.worker.policy.cost import H200_7B, CostModel, Evidence, StepLoad, fit, observe, solve

GRID = [StepLoad(p, d, d * k) for p in (0, 64, 512, 2048) for d in (0, 8, 64, 256) for k in (128, 1024)]


def seconds(model: CostModel, load: StepLoad) -> float:
    return model.step_s(load.prefill, load.decodes, load.kv)


def test_a_profile_gives_back_the_engine_that_made_it() -> None:
    """Least squares over a grid of steps finds the four coefficients."""
    fitted = fit([(load, seconds(H200_7B, load)) for load in GRID])
    assert fitted.error < 1e-6
    for name in CostModel.__struct_fields__:
        assert getattr(fitted.model, name) == pytest.approx(getattr(H200_7B, name), rel=1e-3)


def test_a_noisy_profile_publishes_how_wrong_it_is() -> None:
    """With steps that vary by a tenth, the error says so and the step time is still found."""
    rng = random.Random(1)
    fitted = fit([(load, seconds(H200_7B, load) * rng.uniform(0.9, 1.1)) for load in GRID * 5])
    assert 0.02 < fitted.error < 0.10
    assert fitted.model.step_s(1024, 128, 80_000) == pytest.approx(
        H200_7B.step_s(1024, 128, 80_000), rel=0.05
    )


@given(st.lists(st.tuples(st.sampled_from(GRID), st.floats(1e-4, 1.0)), min_size=4, max_size=40))
def test_no_coefficient_is_ever_negative(profile: list[tuple[StepLoad, float]]) -> None:
    """Whatever was measured, more work never counts as less time."""
    model = fit(profile).model
    assert min(model.base_s, model.prefill_s, model.decode_s, model.kv_s) >= 0


def test_the_running_engine_corrects_a_wrong_profile() -> None:
    """A profile that is half too slow is forgotten within a few hundred steps."""
    wrong = CostModel(base_s=0.012, prefill_s=50e-6, decode_s=15e-6, kv_s=0.16e-6)
    evidence, model, rng = Evidence(wrong), wrong, random.Random(2)
    for step in range(600):
        load = StepLoad(rng.randrange(0, 1500), rng.randrange(1, 200), rng.randrange(1000, 120_000))
        observe(evidence, model, load, seconds(H200_7B, load))
        if step % 50 == 49:
            model = solve(evidence)
    assert model.step_s(1000, 150, 90_000) == pytest.approx(H200_7B.step_s(1000, 150, 90_000), rel=0.03)


def test_steady_load_leaves_the_profile_where_it_says_nothing() -> None:
    """An engine that only decodes does not unlearn what a prompt token costs."""
    evidence = Evidence(H200_7B)
    for _ in range(500):
        observe(evidence, H200_7B, StepLoad(0, 64, 40_000), seconds(H200_7B, StepLoad(0, 64, 40_000)))
    assert solve(evidence).prefill_s == pytest.approx(H200_7B.prefill_s, rel=0.01)


def test_a_refined_model_that_is_worse_than_the_profile_is_not_believed() -> None:
    """Above 20% mean error, and above the profile's own, the profile is used again."""
    evidence, strange = Evidence(H200_7B), CostModel(base_s=0.5, prefill_s=0, decode_s=0, kv_s=0)
    for load in GRID * 5:
        observe(evidence, strange, load, seconds(H200_7B, load))
    assert solve(evidence) is H200_7B


def test_a_profile_of_three_steps_is_refused() -> None:
    """Four coefficients need four steps."""
    with pytest.raises(ValueError, match="at least 4 steps, got 3"):
        fit([(load, 0.01) for load in GRID[:3]])

"""How many tokens a step may compute."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from laneway.worker.policy.budget import (
    ALIGN,
    FLOOR,
    FLOOR_CPU,
    STRETCH,
    BudgetRule,
    Haste,
    check_fixed,
    haste,
    long_prefill_cap,
    step_budget,
)
from laneway.worker.policy.cost import H200_7B

RULE = BudgetRule(most=2048)


def test_nobody_reading_along_means_the_largest_step() -> None:
    """Large steps are cheaper, and no one waits for their end."""
    assert step_budget(H200_7B, RULE, decodes=200, kv=120_000, reading=False).tokens == 2048


@given(st.integers(0, 256), st.integers(0, 200_000), st.sampled_from([FLOOR, FLOOR_CPU]))
def test_a_usual_step_meets_the_target_or_says_that_it_cannot(decodes: int, kv: int, floor: int) -> None:
    """Within the target less its margin; else the floor, marked infeasible. In whole tiles, which are finer on a CPU."""
    rule = replace(RULE, floor=floor)
    budget = step_budget(H200_7B, rule, decodes=decodes, kv=kv, reading=True)
    prompt = budget.tokens - decodes
    assert prompt >= min(floor, rule.most - decodes)
    if budget.feasible:
        assert H200_7B.step_s(prompt, decodes, kv) <= rule.tpot_s * (1 - rule.margin) + 1e-9
        assert prompt % min(ALIGN, floor) == 0 or budget.tokens == rule.most


@given(st.integers(1, 5000), st.sampled_from(Haste))
@pytest.mark.case("C41")
def test_latency_prompts_stretch_a_step_only_so_far(need: int, hurry: Haste) -> None:
    """However many wait, the step stays below 1.2 times the target (plus the half tile that others always get)."""
    budget = step_budget(
        H200_7B, RULE, decodes=50, kv=30_000, reading=True, latency_prefill=need, haste=hurry
    )
    longest = max(RULE.tpot_s * STRETCH, H200_7B.step_s(FLOOR, 50, 30_000))
    assert H200_7B.step_s(budget.tokens - 50, 50, 30_000) <= longest + 64 * H200_7B.prefill_s


def test_haste_grows_as_the_target_comes_near() -> None:
    """First the step gets shorter, then throughput jobs sit it out."""
    at = [
        haste(H200_7B, begins=0, due=due, latency_prefill=128, decodes=100, kv=60_000)
        for due in (1.0, 0.06, 0.01)
    ]
    assert at == [Haste.NONE, Haste.LEAN, Haste.PAUSE]


def test_a_lean_step_is_shorter_than_a_usual_one() -> None:
    """Only the latency prompt and half a tile beside the decodes."""
    usual, lean = (
        step_budget(
            H200_7B, RULE, decodes=100, kv=60_000, reading=True, latency_prefill=100, haste=hurry
        ).tokens
        for hurry in (Haste.NONE, Haste.LEAN)
    )
    assert lean == 100 + 100 + 64 < usual


@pytest.mark.case("C41")
def test_the_cap_leaves_latency_prompts_their_tokens() -> None:
    """Running throughput prompts together never eat what a waiting latency prompt needs."""
    cap = long_prefill_cap(1000, decodes=100, latency_prefill=300, prompts=3)
    assert 3 * cap + 100 + 300 <= 1000
    assert long_prefill_cap(1000, decodes=100, latency_prefill=0, prompts=3) == 0


@pytest.mark.parametrize("tokens", [0, 127, 8193])
def test_a_fixed_budget_outside_its_range_is_refused(tokens: int) -> None:
    """128 to 8,192 tokens."""
    with pytest.raises(ValueError, match="expected 128 to 8192"):
        check_fixed(tokens)
    assert check_fixed(512) == 512

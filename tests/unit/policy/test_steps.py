"""What a step serves while latency jobs are in the engine."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from laneway.worker.policy.budget import MIN_CHUNK, STRETCH, BudgetRule, Haste
from laneway.worker.policy.cost import H200_7B
from laneway.worker.policy.steps import LEAD_LIMITS_S, LEAD_START_S, Orders, Scene, next_lead, orders

RULE = BudgetRule(most=2048)
PROMPTS = st.lists(st.integers(1, 4000), max_size=8)


def scene(**fields: Any) -> Scene:
    """Two hundred decodes, four of them of the latency class, and somebody who reads."""
    usual = {"decodes": 200, "kv": 120_000, "latency_decodes": 4, "latency_kv": 800, "reading": True}
    return Scene(**{**usual, **fields})


def test_nothing_changes_while_no_latency_job_is_there() -> None:
    """The engine's own step: all tokens, everybody in it."""
    found = orders(H200_7B, RULE, scene(reading=False, prompts=[500, 500]))
    assert found == Orders(tokens=2048, prompts=2)


def test_tokens_are_left_for_a_prompt_that_waits() -> None:
    """Prompts under way get what is left when the waiting one is computed whole."""
    found = orders(None, RULE, scene(latency_prompts=[300], slack_s=1.0, prompts=[1000, 3000]))
    assert found == Orders(tokens=2048, prompts=2, cap=2048 - 200 - 300 - 1000)


def test_a_cap_never_cuts_the_prompt_that_it_is_for() -> None:
    """vLLM's cap counts for all: where it would cut the latency prompt, the throughput prompt sits out instead."""
    found = orders(None, RULE, scene(latency_prompts=[1500], slack_s=1.0, prompts=[3000]))
    assert (found.prompts, found.cap) == (0, 0)


def test_throughput_jobs_sit_out_when_a_first_token_is_nearly_late() -> None:
    """The step is the latency prompt's and its own class's decodes."""
    found = orders(H200_7B, RULE, scene(latency_prompts=[128], slack_s=0.01, prompts=[800]))
    assert found == Orders(tokens=132, prompts=0, decodes=False, haste=Haste.PAUSE)


def test_nobody_sits_out_when_that_is_not_allowed() -> None:
    """The cache is nearly full, or it did not help a moment ago."""
    late = scene(latency_prompts=[128], slack_s=0.01, prompts=[800])
    found = orders(H200_7B, RULE, late, may_pause=False, may_wait=False)
    assert (found.prompts, found.decodes, found.cap) == (1, True, 0)


@given(PROMPTS, PROMPTS, st.floats(-1, 2), st.booleans(), st.booleans(), st.sampled_from([None, 128, 1024]))
def test_latency_prompts_get_their_tokens_first(
    latency: list[int], prompts: list[int], slack: float, known: bool, may_pause: bool, fixed: int | None
) -> None:
    """What throughput prompts may take never reaches into what the latency prompts need, unless the step is too small."""
    rule = BudgetRule(most=2048, fixed=fixed)
    found = orders(
        H200_7B if known else None,
        rule,
        scene(latency_prompts=latency, slack_s=slack, prompts=prompts),
        may_pause=may_pause,
    )
    assert 0 < found.tokens <= rule.most
    assert 0 <= found.prompts <= len(prompts)
    if not latency:
        assert found == Orders(tokens=found.tokens, prompts=len(prompts))
        return
    assert found.cap == 0 or found.cap >= max(latency)
    limit = found.cap or max(prompts, default=0)
    taken = sum(min(tokens, limit) for tokens in prompts[: found.prompts])
    decodes = 200 if found.decodes else 4
    assert taken == 0 or taken + sum(latency) + decodes <= found.tokens


@given(PROMPTS, PROMPTS, st.floats(-1, 2))
def test_a_step_lasts_no_longer_than_the_target_stretched(
    latency: list[int], prompts: list[int], slack: float
) -> None:
    """Readers wait at most 1.2 times the target, and half a tile, however many prompts there are."""
    found = orders(
        H200_7B, RULE, scene(decodes=50, kv=30_000, latency_prompts=latency, slack_s=slack, prompts=prompts)
    )
    decodes, kv = (50, 30_000) if found.decodes else (4, 800)
    lasts = H200_7B.step_s(max(0, found.tokens - decodes), decodes, kv)
    assert lasts <= RULE.tpot_s * STRETCH + MIN_CHUNK * H200_7B.prefill_s


@given(st.floats(0.001, 0.05), st.integers(0, 1000))
def test_the_lead_settles_where_the_device_rarely_runs_dry(needed: float, seed: int) -> None:
    """Whatever a step's launch takes, about one step in fifty comes too late, and the lead is near what is needed."""
    r = random.Random(seed)
    lead, dry = LEAD_START_S, 0
    for i in range(4000):
        late = lead < needed * r.uniform(0.8, 1.2)
        lead = next_lead(lead, dry=late)
        dry += late and i >= 2000
    assert dry / 2000 < 0.04
    assert lead < max(LEAD_LIMITS_S[0], needed) * 1.5

"""How many tokens one engine step may compute, so that whoever reads along keeps getting a token in time.

Decodes cost a token each and always run; what is left of the time between two tokens is filled with prompts. With
nobody reading along the step is as large as the engine takes: large steps are a few per cent cheaper per token.
"""

from __future__ import annotations

import math
from enum import IntEnum

from msgspec import Struct

from laneway.worker.policy.cost import CostModel

ALIGN = 128
"""Prompt tokens per tile: GPU matrix kernels work in tiles of 128 rows, part of a tile costs a whole one."""
FLOOR = 128
"""Fewest prompt tokens of a step: below one tile prompts stop moving and seats never turn over."""
FLOOR_CPU = 32
"""The same on a CPU, whose kernels know no such tiles: half a step of the demo model with all seats taken."""
FIXED_RANGE = (128, 8192)
"""Accepted values of a fixed budget, in tokens: under 128 see `FLOOR`; above 8,192 vLLM's own docs see no more
throughput, and a step takes a third of a second on an H200 with a 7B."""
MARGIN = 0.10
"""Share of the TPOT target left unused by admission alone: steps vary, and their mean must stay below the target."""
MARGIN_STEPWISE = 0.05
"""The same where every step's budget follows the target: what is left is the model's own error (about 4%)."""
STRETCH = 1.2
"""A step may last so many times the TPOT target for the sake of latency prompts: 60 ms of 50. A late first token is
missed by a reader at once, one longer gap is made up for by the next ones. Simulated: 1.0 makes the 99th percentile of
TTFT 15% worse, 1.5 makes the widest gaps 25% wider."""
MIN_CHUNK = 64
"""Prompt tokens per step that throughput prompts always get, half a tile: they hold KV and seats, and must move."""


LEAN_STEPS = 4.0
"""A waiting latency prompt is computed without throughput prompts beside it when it would be late after so many usual
steps. Simulated against doing so always: 2% more throughput, and the target for the first token is still met."""
PAUSE_STEPS = 2.5
"""Throughput jobs are paused for a step when it would be late after so many: its own, one that it may slip, and the
half of the running one that is not seen. Simulated: 1.5 leaves bursts at 77% attained in place of 84%, pausing at
every latency prompt costs 8% of the throughput in place of 1%."""


class BudgetRule(Struct, frozen=True, kw_only=True):
    """How the budget is chosen. Tokens and seconds."""

    most: int
    """The engine's own limit: `max_num_batched_tokens`."""
    tpot_s: float = 0.05
    """Time between two tokens that latency jobs are promised when they name none: 20 tokens a second, four times
    as fast as people read."""
    floor: int = FLOOR
    margin: float = MARGIN
    fixed: int | None = None
    """Always this many tokens while somebody reads along: the model is not asked."""


class StepBudget(Struct, frozen=True):
    """What the next step may compute."""

    tokens: int
    """All tokens of the step, the decodes included."""
    feasible: bool = True
    """Whether the target can be met at all with these decodes. If not, no throughput prompt should be added."""


def check_fixed(tokens: int) -> int:
    """`tokens` when it can be a fixed budget.

    Raises:
        ValueError: outside `FIXED_RANGE`.
    """
    low, high = FIXED_RANGE
    if not low <= tokens <= high:
        raise ValueError(f"budget: expected {low} to {high} tokens, got {tokens}")
    return tokens


class Haste(IntEnum):
    """How much the next step does for the latency prompts that wait."""

    NONE = 0
    """They go first, the rest of the step is as usual."""
    LEAN = 1
    """They go first, with next to no throughput prompts beside them: a shorter step."""
    PAUSE = 2
    """They go alone: throughput jobs sit out the step and keep their KV."""


def haste(
    model: CostModel, *, begins: float, due: float, latency_prefill: int, decodes: int, kv: int
) -> Haste:
    """What the step that begins at `begins` should do, by how many usual steps fit before the prompts are late.

    Args:
        due: when the first of the waiting latency jobs should have its first token, on the clock of `begins`.
        decodes, kv: all sequences that decode and their context.
    """
    steps = (due - begins) / model.step_s(latency_prefill, decodes, kv)
    if steps < PAUSE_STEPS:
        return Haste.PAUSE
    return Haste.LEAN if steps < LEAN_STEPS else Haste.NONE


def step_budget(
    model: CostModel,
    rule: BudgetRule,
    *,
    decodes: int,
    kv: int,
    reading: bool,
    latency_prefill: int = 0,
    haste: Haste = Haste.NONE,
    tpot_s: float | None = None,
) -> StepBudget:
    """The budget of a step beside `decodes` sequences with `kv` tokens of context.

    Args:
        reading: a latency job is in the engine, or one is expected within the step.
        latency_prefill: prompt tokens of latency jobs that are not computed yet.
        haste: what is done for them; see `haste`.
        tpot_s: the tightest target among the latency jobs; None: the rule's own.
    """
    if not reading:
        return StepBudget(rule.most)
    if rule.fixed is not None:
        return StepBudget(min(rule.most, max(rule.fixed, decodes)))
    target = rule.tpot_s if tpot_s is None else tpot_s
    room = model.prefill_room(target * (1 - rule.margin), decodes, kv)
    tile = min(ALIGN, rule.floor)
    usual = max(rule.floor, _aligned(room, tile))
    widest = max(rule.floor, _aligned(model.prefill_room(target * STRETCH, decodes, kv), tile))
    latency = min(latency_prefill, widest)
    prompt = latency + min(MIN_CHUNK, rule.floor) if haste is not Haste.NONE else max(usual, latency)
    return StepBudget(min(rule.most, prompt + decodes), feasible=room >= rule.floor)


def long_prefill_cap(budget: int, *, decodes: int, latency_prefill: int, prompts: int) -> int:
    """Most tokens of *one* throughput prompt in a step, so that the latency prompts' tokens are left for them.

    0 means no cap (vLLM's `long_prefill_token_threshold`): no latency prompt waits, or no throughput prompt runs.
    """
    if latency_prefill == 0 or prompts == 0:
        return 0
    return max(1, (budget - decodes - latency_prefill) // prompts)


def _aligned(tokens: float, tile: int) -> int:
    return math.floor(tokens / tile) * tile

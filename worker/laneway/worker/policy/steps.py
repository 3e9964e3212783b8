"""What an engine step serves while latency jobs are in it: how many tokens, and who sits it out.

vLLM serves what already runs before what waits, in the order in which it came. So a prompt under way takes the step's
tokens before a latency prompt gets any, whatever its priority. Leaving such prompts out of a step is the only way to
keep tokens free; they keep their seat and their KV.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from laneway.worker.policy.budget import BudgetRule, Haste, haste, step_budget
from laneway.worker.policy.cost import CostModel

THROUGHPUT = 1
"""Engine priorities below this are latency jobs."""
LINGER_S = 10.0
"""Steps stay short for so long after the last latency job: the next one finds a short step running. At random arrivals
once a second, 37% of the gaps are longer than a second and one in 22,000 longer than ten."""
PAUSES_IN_A_ROW = 4
"""Steps in a row that throughput decodes may sit out: five steps are the longest gap that they see."""
BACK_OFF = 16
"""Steps for which nobody sits out, after one in which that helped no latency prompt: it could not be admitted."""

LEAD_START_S = 0.02
"""First guess of how long before the running step's end the next one is put together: longer than it takes."""
LEAD_LIMITS_S = (0.002, 0.2)
"""Shortest: a scheduler's own work for a few sequences. Longest: a step of most engines, so it never waits at all."""
LEAD_GROWTH = 1.2
LEAD_DECAY = 0.996
"""After a step that came too late, and after one that did not. In balance one step in 46 is late, by a fraction of its
lead: ln 1.2 / -ln 0.996."""


class Scene(Struct, frozen=True, kw_only=True):
    """What the scheduler finds before a step. Tokens and sequences."""

    latency_prompts: Sequence[int] = ()
    """Prompt tokens that are not computed yet of each latency job, waiting or running."""
    slack_s: float = 0.0
    """From the step's begin until the first of them is late; negative when it is."""
    latency_decodes: int = 0
    decodes: int = 0
    """All sequences that decode, the latency class's included."""
    kv: int = 0
    """Their context."""
    latency_kv: int = 0
    """The part of it that belongs to the latency class."""
    prompts: Sequence[int] = ()
    """Tokens left of each throughput prompt under way, in the order in which they are served."""
    reading: bool = False
    """A latency job is in the engine, or was until shortly before."""


class Orders(Struct, frozen=True, kw_only=True):
    """How the step is served."""

    tokens: int
    """Budget of the step."""
    cap: int = 0
    """Most prompt tokens of one job in the step; 0: no limit."""
    prompts: int
    """The first so many throughput prompts are served, the others sit the step out."""
    decodes: bool = True
    """Throughput decodes are served too."""
    haste: Haste = Haste.NONE


def orders(
    model: CostModel | None,
    rule: BudgetRule,
    scene: Scene,
    *,
    may_pause: bool = True,
    may_wait: bool = True,
    least: Haste = Haste.NONE,
) -> Orders:
    """How to serve the next step.

    Args:
        model: None as long as the engine's speed is not known: then the step keeps its size.
        may_pause: throughput decodes may sit the step out.
        may_wait: throughput prompts may sit it out.
        least: what is done for a latency prompt that has all the time in the world.
    """
    everyone = len(scene.prompts)
    if not scene.reading:
        return Orders(tokens=rule.most, prompts=everyone)
    need = sum(scene.latency_prompts)
    hurry = _hurry(model, scene, need, may_pause, least)
    pause = hurry is Haste.PAUSE
    decodes = scene.latency_decodes if pause else scene.decodes
    tokens = rule.most
    if model is not None or rule.fixed is not None:
        tokens = step_budget(
            model or _UNKNOWN,
            rule,
            decodes=decodes,
            kv=scene.latency_kv if pause else scene.kv,
            reading=True,
            latency_prefill=need,
            haste=hurry,
        ).tokens
    if pause:
        return Orders(tokens=max(1, min(tokens, need + decodes)), prompts=0, decodes=False, haste=hurry)
    if not need or not may_wait:
        return Orders(tokens=tokens, prompts=everyone, haste=hurry)
    served, cap = _fill(tokens - decodes - need, scene.prompts, max(scene.latency_prompts))
    return Orders(tokens=tokens, cap=cap, prompts=served, haste=hurry)


def next_lead(lead_s: float, *, dry: bool) -> float:
    """How long before the end of the running step the next one is put together, after one that had `lead_s`.

    The device tells whether that was long enough: it ran `dry`, or it did not. As short as it gets without that
    happening often, whatever the processor, the number of sequences and the error of the prediction are.
    """
    least, most = LEAD_LIMITS_S
    return min(most, max(least, lead_s * (LEAD_GROWTH if dry else LEAD_DECAY)))


_UNKNOWN = CostModel(base_s=0, prefill_s=0, decode_s=0, kv_s=0)


def _hurry(model: CostModel | None, scene: Scene, need: int, may_pause: bool, least: Haste) -> Haste:
    if not need or model is None:
        return Haste.NONE
    found = haste(
        model, begins=0.0, due=scene.slack_s, latency_prefill=need, decodes=scene.decodes, kv=scene.kv
    )
    found = max(found, least)
    return found if may_pause else min(found, Haste.LEAN)


def _fill(room: int, prompts: Sequence[int], longest: int) -> tuple[int, int]:
    """How many of `prompts` are served in `room` tokens, and the cap that keeps the last of them inside.

    The engine's cap counts for latency prompts too, so it is never set below `longest` of them.
    """
    for served, tokens in enumerate(prompts):
        if tokens > room:
            return (served + 1, room) if room >= longest else (served, 0)
        room -= tokens
    return len(prompts), 0

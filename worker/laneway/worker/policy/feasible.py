"""What a deadline must leave at least: below that, no schedule helps.

A lower bound, so that nobody is turned away who might have made it: the prompt (unless a prefix cache may hold it), and
the tokens that the answer has at least, one after the other, on an engine that has nothing else to do.
"""

from __future__ import annotations

from laneway.schemas.cards import Floor
from laneway.worker.policy.cost import CostModel

SURE = 0.5
"""Of the step times that the warm-up found, what no step is believed to fall below. On a busy machine the profile is off
by up to a third (notes 3.2: 27%)."""


def floor_of(profile: CostModel | None, *, prefix_cache: bool, burst: int) -> Floor:
    """The floor of an engine whose steps cost what `profile` says; None: it was not measured.

    Args:
        burst: most tokens that a step adds to one answer.
    """
    if profile is None:
        return Floor()
    prompt_s = 0.0 if prefix_cache else SURE * profile.prefill_s
    return Floor(prompt_s=prompt_s, token_s=SURE * profile.base_s / burst)

"""Whether a broken-off job can go on from the tokens it already has, instead of starting again.

Going on means: the prompt plus the tokens generated so far become the new prompt, and the step limits shrink by what
is there. The answer is then one that an undisturbed run could have given. It would not be where the sampler carries
state from token to token that a new prompt does not restore: so a job goes on unless it has n > 1, a seed, a penalty,
a grammar, log-probabilities, bad words, stop strings, or special tokens shown without blanks between them.
Temperature, top-p, top-k, min-p, logit bias, allowed tokens, stop tokens, `min_tokens` and `ignore_eos` look at one
step only; a greedy answer is the same as an undisturbed one, up to the rounding of the engine's arithmetic.
"""

from __future__ import annotations

import msgspec

from laneway.schemas.job import Job
from laneway.schemas.sampling import Sampling


def why_not_resumable(job: Job) -> str | None:
    """The reason why `job` must start again when it is broken off, or None when it can go on."""
    sampling = job.sampling
    reasons = {
        "n > 1 (the answers stand at different points)": sampling.n > 1,
        "a seed (the random state would start again)": sampling.seed is not None,
        "penalties (they tell prompt from answer)": _has_penalties(sampling),
        "a grammar (its state would start again)": sampling.structured_outputs is not None,
        "logprobs (those of the first part are not kept)": sampling.logprobs is not None
        or sampling.prompt_logprobs is not None,
        "bad words (a word may span the cut)": bool(sampling.bad_words),
        "stop strings (one may span the cut)": bool(sampling.stop),
        "special tokens without blanks between them (what came before the cut decides)": not (
            sampling.skip_special_tokens or sampling.spaces_between_special_tokens
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _has_penalties(sampling: Sampling) -> bool:
    return bool(sampling.presence_penalty or sampling.frequency_penalty or sampling.repetition_penalty != 1.0)


def remaining(sampling: Sampling, generated: int) -> Sampling:
    """The sampling parameters for what is left after `generated` tokens. `max_tokens` must leave at least one."""
    left = None if sampling.max_tokens is None else sampling.max_tokens - generated
    return msgspec.structs.replace(
        sampling, max_tokens=left, min_tokens=max(0, sampling.min_tokens - generated)
    )

"""How long an answer will be, by what the same tenant, adapter and bucket got lately.

Three numbers: the mean, for what many jobs take together (KV, seats, fair shares); the 90th percentile, for how long one
job may take before its deadline; the 10th, below which a deadline is given up. Until there is something to go by, the
first two are the job's own `max_tokens` and the last is one.
"""

from __future__ import annotations

import math

from msgspec import Struct, field

from laneway.schemas.job import Bucket

MOST, LEAST = 0.90, 0.10
"""Shares of answers that are no longer than the two bounds (notes: QLM, HyGen and Niyama use 0.9 to 0.95)."""
ENOUGH = 30
"""Answers seen before the estimate is believed: below that the 90th percentile rests on fewer than three of them."""
DECAY = 0.99
"""Weight that is left of an answer after one more of its kind: the last hundred decide."""
BINS_PER_DOUBLING = 4
"""Resolution: an estimate is at most 2^(1/4), 19%, above the percentile itself."""
BINS = 80
"""Up to 2^20 tokens."""
MOST_KINDS = 4096
"""Kinds remembered; beyond that the one unseen for longest goes. A kind takes about 1 KB."""

Kind = tuple[str, str | None, Bucket]
"""(tenant, adapter, bucket)."""


class Estimate(Struct, frozen=True):
    """Output tokens of one job."""

    mean: int
    most: int
    """The 90th percentile."""
    least: int
    """The 10th percentile."""


class Histogram(Struct):
    """Decayed counts of answer lengths in geometric bins."""

    weights: list[float] = field(default_factory=lambda: [0.0] * BINS)
    mean: float = 0.0
    samples: int = 0
    estimate: Estimate | None = None
    """As of the last answer; None until there are enough."""


class Lengths(Struct):
    """All kinds' histograms, the most recently fed last."""

    kinds: dict[Kind, Histogram] = field(default_factory=dict)


def record(lengths: Lengths, kind: Kind, tokens: int) -> None:
    """An answer of this kind ended after `tokens` tokens."""
    histogram = lengths.kinds.pop(kind, None) or Histogram()
    lengths.kinds[kind] = histogram
    if len(lengths.kinds) > MOST_KINDS:
        del lengths.kinds[next(iter(lengths.kinds))]
    histogram.weights = [weight * DECAY for weight in histogram.weights]
    histogram.weights[_bin(tokens)] += 1.0
    histogram.samples += 1
    histogram.mean += max(1 - DECAY, 1 / histogram.samples) * (tokens - histogram.mean)
    if histogram.samples >= ENOUGH:
        numbers = math.ceil(histogram.mean), _percentile(histogram, MOST), _percentile(histogram, LEAST)
        histogram.estimate = Estimate(*(max(1, number) for number in numbers))


def estimate(lengths: Lengths, kind: Kind, max_tokens: int) -> Estimate:
    """What to reckon with for a job of this kind, neither more than `max_tokens` nor less than one."""
    histogram = lengths.kinds.get(kind)
    if histogram is None or histogram.estimate is None:
        return Estimate(max_tokens, max_tokens, 1)
    known = histogram.estimate
    if max(known.mean, known.most) <= max_tokens:
        return known
    return Estimate(min(known.mean, max_tokens), min(known.most, max_tokens), min(known.least, max_tokens))


def _percentile(histogram: Histogram, share: float) -> int:
    wanted = share * sum(histogram.weights)
    seen = 0.0
    for index, weight in enumerate(histogram.weights):
        seen += weight
        if seen >= wanted:
            return _upper_bound(index)
    return _upper_bound(BINS - 1)


def _bin(tokens: int) -> int:
    return min(BINS - 1, math.ceil(BINS_PER_DOUBLING * math.log2(max(1, tokens)) - 1e-9))


def _upper_bound(index: int) -> int:
    return math.floor(2 ** (index / BINS_PER_DOUBLING) + 1e-9)

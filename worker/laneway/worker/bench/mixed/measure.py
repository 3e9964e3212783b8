"""What jobs saw, and the figures made of it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from msgspec import Struct, field

from laneway.worker.bench.mixed.plan import Shape


class Record(Struct, kw_only=True):
    """One job. Times are seconds from the beginning of what is judged."""

    latency: bool
    due: float
    """When it arrived: it waits from here on, wherever it waits."""
    tokens: list[tuple[float, int]] = field(default_factory=list)
    """When output came, and how many tokens."""
    ended: float | None = None

    @property
    def first(self) -> float | None:
        """When the first token came."""
        return self.tokens[0][0] if self.tokens else None

    @property
    def tpot(self) -> float | None:
        """Mean seconds per token after the first; None for jobs that did not end, and for answers of one token."""
        count = sum(tokens for _, tokens in self.tokens)
        if self.ended is None or count < 2:
            return None
        return (self.tokens[-1][0] - self.tokens[0][0]) / (count - 1)

    @property
    def gap(self) -> float | None:
        """Longest time without a token after the first one."""
        times = [at for at, _ in self.tokens]
        return max((b - a for a, b in pairwise(times)), default=None)


class Spread(Struct, frozen=True):
    """Percentiles in milliseconds; None where nothing was measured."""

    p50: float | None
    p95: float | None
    p99: float | None


class ClassFigures(Struct, frozen=True, kw_only=True):
    """One service class in one run."""

    jobs: int
    """Judged: they arrived early enough for a first token in time before the end."""
    unanswered: int
    """Of these, how many had no token at the end. They count with the time that they had waited: too little."""
    ttft_ms: Spread
    tpot_ms: Spread
    gap_ms: Spread
    """Of each job's longest gap between tokens."""
    gap_max_ms: float | None
    goodput: float | None
    """Share of jobs with both targets met, of those that had the time for it; None for a class without targets."""
    tokens_s: float
    """Output tokens per second."""
    jobs_s: float


class Figures(Struct, frozen=True, kw_only=True):
    """One run."""

    latency: ClassFigures
    throughput: ClassFigures


def measure(records: Sequence[Record], shape: Shape, seconds: float) -> Figures:
    """Judge what happened from 0 to `seconds`, when the run was broken off."""
    first = shape.ttft_ms / 1000
    whole = first + max(shape.latency_answers) * shape.tpot_ms / 1000
    latency = [record for record in records if record.latency]
    throughput = [record for record in records if not record.latency]
    judged = [record for record in latency if 0 <= record.due < seconds - first]
    met = [_met(record, shape) for record in judged if record.due < seconds - whole]
    return Figures(
        latency=_figures(latency, judged, seconds, sum(met) / len(met) if met else None),
        throughput=_figures(throughput, [r for r in throughput if 0 <= r.due < seconds], seconds, None),
    )


def median_of(runs: Sequence[Figures]) -> Figures:
    """Each figure's median over the runs; a figure that a run lacks is left out of it."""
    return Figures(
        latency=_median_class([run.latency for run in runs]),
        throughput=_median_class([run.throughput for run in runs]),
    )


def percentile(values: Iterable[float], percent: float) -> float | None:
    """Nearest rank; None for nothing."""
    ordered = sorted(values)
    if not ordered:
        return None
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def _met(record: Record, shape: Shape) -> bool:
    if record.first is None or record.ended is None:
        return False
    return record.first - record.due <= shape.ttft_ms / 1000 and (record.tpot or 0.0) <= shape.tpot_ms / 1000


def _figures(
    records: Sequence[Record], judged: Sequence[Record], seconds: float, goodput: float | None
) -> ClassFigures:
    gaps = [record.gap for record in judged if record.gap is not None]
    output = sum(tokens for record in records for at, tokens in record.tokens if 0 <= at < seconds)
    ended = sum(record.ended is not None and 0 <= record.ended < seconds for record in records)
    return ClassFigures(
        jobs=len(judged),
        unanswered=sum(record.first is None for record in judged),
        ttft_ms=_spread([(seconds if r.first is None else r.first) - r.due for r in judged]),
        tpot_ms=_spread([record.tpot for record in judged if record.tpot is not None]),
        gap_ms=_spread(gaps),
        gap_max_ms=_ms(max(gaps, default=None)),
        goodput=None if goodput is None else round(goodput, 4),
        tokens_s=round(output / seconds, 2),
        jobs_s=round(ended / seconds, 3),
    )


def _spread(values: Sequence[float]) -> Spread:
    return Spread(*(_ms(percentile(values, percent)) for percent in (50, 95, 99)))


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 1)


def _median_class(runs: Sequence[ClassFigures]) -> ClassFigures:
    def spread(of: Callable[[ClassFigures], Spread]) -> Spread:
        return Spread(
            _median(of(run).p50 for run in runs),
            _median(of(run).p95 for run in runs),
            _median(of(run).p99 for run in runs),
        )

    return ClassFigures(
        jobs=sum(run.jobs for run in runs),
        unanswered=sum(run.unanswered for run in runs),
        ttft_ms=spread(lambda run: run.ttft_ms),
        tpot_ms=spread(lambda run: run.tpot_ms),
        gap_ms=spread(lambda run: run.gap_ms),
        gap_max_ms=_median(run.gap_max_ms for run in runs),
        goodput=_median(run.goodput for run in runs),
        tokens_s=_median(run.tokens_s for run in runs) or 0.0,
        jobs_s=_median(run.jobs_s for run in runs) or 0.0,
    )


def _median(values: Iterable[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return statistics.median(there) if there else None

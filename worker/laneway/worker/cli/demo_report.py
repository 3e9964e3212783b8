"""What became of the demo's jobs, by class and by adapter."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec import Struct

from laneway.schemas.outcome import Completed, Result
from laneway.worker.table import table


class Group(Struct, frozen=True):
    """One row: the jobs of a class or of an adapter."""

    name: str
    jobs: int
    outcomes: dict[str, int]
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None
    output_tokens: int
    tokens_per_s: float
    """From the first acceptance to the last end of the group."""


class Ended(Struct, frozen=True):
    """One job of the demo: what was asked and what came."""

    slo: str
    lora: str
    result: Result


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that is at least as large as `share` of all; None of none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def group(name: str, jobs: Sequence[Ended]) -> Group:
    """Count and measure a group of at least one job."""
    lines = [job.result.timeline for job in jobs]
    ttft = [float(line.ttft_ms) for line in lines if line.ttft_ms is not None]
    tokens = sum(job.result.outcome.usage.output_tokens for job in jobs if job.result.outcome.usage)
    seconds = (max(line.ended_ms for line in lines) - min(line.submitted_ms for line in lines)) / 1000
    return Group(
        name=name,
        jobs=len(jobs),
        outcomes=dict(Counter(type(job.result.outcome).__name__.lower() for job in jobs)),
        ttft_p50_ms=percentile(ttft, 0.5),
        ttft_p95_ms=percentile(ttft, 0.95),
        output_tokens=tokens,
        tokens_per_s=tokens / seconds if seconds > 0 else 0.0,
    )


def groups(jobs: Sequence[Ended], key: Callable[[Ended], str], names: Iterable[str]) -> list[Group]:
    """A row for each of the names that has jobs."""
    chosen = {name: [job for job in jobs if key(job) == name] for name in names}
    return [group(name, mine) for name, mine in chosen.items() if mine]


def render(head: str, rows: Sequence[Group]) -> str:
    """The rows as a table for people."""
    columns = (head, "jobs", "TTFT p50", "TTFT p95", "tokens", "tokens/s", "outcomes")
    return table(columns, [_cells(row) for row in rows], right=(1, 2, 3, 4, 5))


def failures(jobs: Sequence[Ended]) -> list[str]:
    """A line for each job that did not complete."""
    lines = []
    for job in jobs:
        outcome = job.result.outcome
        if not isinstance(outcome, Completed):
            error: Any = getattr(outcome, "error", None)
            reason = f": {error.message}" if error else ""
            lines.append(f"{job.result.job_id} ({job.slo}) {type(outcome).__name__.lower()}{reason}")
    return lines


def _cells(row: Group) -> tuple[object, ...]:
    outcomes = ", ".join(f"{count} {word}" for word, count in sorted(row.outcomes.items()))
    rate = f"{row.tokens_per_s:.1f}"
    return row.name, row.jobs, _ms(row.ttft_p50_ms), _ms(row.ttft_p95_ms), row.output_tokens, rate, outcomes


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} ms"

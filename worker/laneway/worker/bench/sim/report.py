"""Figures as tables of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from laneway.worker.bench.sim.calibrate import Row
from laneway.worker.bench.sim.goodput import Goodput
from laneway.worker.bench.sim.metrics import Figures, median

_COLUMNS = (
    ("TTFT p50 ms", "ttft_p50", 1000, 0),
    ("p95", "ttft_p95", 1000, 0),
    ("p99", "ttft_p99", 1000, 0),
    ("TPOT p50", "tpot_p50", 1000, 0),
    ("p99", "tpot_p99", 1000, 0),
    ("gap p99", "gap_p99", 1000, 0),
    ("latency/s", "latency_rate", 1, 1),
    ("throughput/s", "throughput_rate", 1, 1),
    ("tokens/s", "throughput_tokens", 1, 0),
    ("attained", "latency_attained", 1, 3),
    ("on time", "throughput_attained", 1, 3),
    ("goodput/s", "goodput", 1, 1),
    ("Jain", "jain", 1, 2),
    ("longest wait s", "longest_wait", 1, 0),
)


def median_of(runs: Sequence[Figures]) -> Figures:
    """The median of each figure on its own."""
    return Figures(
        **{name: median([getattr(run, name) for run in runs]) for name in Figures.__struct_fields__}
    )


def figures_table(runs: Mapping[str, Sequence[Figures]]) -> str:
    """One line per policy: medians over its runs."""
    rows = [["policy", *(title for title, *_ in _COLUMNS)]]
    for name, figures in runs.items():
        middle = median_of(figures)
        rows.append(
            [name] + [f"{getattr(middle, field) * scale:.{digits}f}" for _, field, scale, digits in _COLUMNS]
        )
    return _aligned(rows)


def goodput_table(found: Sequence[Goodput]) -> str:
    """One line per policy: load per seed, and how much Laneway does for each job of it."""
    ours = found[-1].load
    rows = [["policy", "load", "seeds", f"{found[-1].name} is", "knobs"]]
    for each in found:
        ratio = f"{ours / each.load:.2f}x" if each.load else "-"
        rows.append(
            [each.name, f"{each.load:.3f}", " ".join(f"{x:.3f}" for x in each.loads), ratio, each.knobs]
        )
    return _aligned(rows)


def calibration_table(runs: Sequence[tuple[Row, Figures]]) -> str:
    """One line per experiment: simulated / measured."""
    rows = [["experiment", "flood jobs/s", "TTFT p50 ms", "p99", "gap p99 ms"]]
    for row, figures in runs:
        rows.append([row.name, *(f"{got:.0f} / {want:.0f}" for got, want in _pairs(row, figures))])
    return _aligned(rows)


def mean_deviation(runs: Sequence[tuple[Row, Figures]]) -> float:
    """Mean of |simulated / measured - 1| over all cells."""
    errors = [abs(got / want - 1) for row, figures in runs for got, want in _pairs(row, figures)]
    return sum(errors) / len(errors)


def _pairs(row: Row, figures: Figures) -> list[tuple[float, float]]:
    return [
        (figures.throughput_rate, row.rate),
        (figures.ttft_p50 * 1000, row.ttft_p50),
        (figures.ttft_p99 * 1000, row.ttft_p99),
        (figures.gap_p99 * 1000, row.gap_p99),
    ]


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    """Columns of equal width, the first flush left, the others right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )

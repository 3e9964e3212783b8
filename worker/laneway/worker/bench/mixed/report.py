"""The comparison as tables, as one line of JSON, and as pictures where matplotlib is installed."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from laneway.worker.bench.mixed.compare import BASELINE, OURS, Comparison
from laneway.worker.bench.mixed.measure import ClassFigures, Figures, median_of
from laneway.worker.table import table

_HEAD = (
    "policy",
    "TTFT p50",
    "p95",
    "p99",
    "TPOT p50",
    "p99",
    "gap p99",
    "max",
    "goodput",
    "tokens/s",
    "jobs/s",
)


def render(found: Comparison) -> str:
    """One table per class, medians over the seeds, and every seed's two main figures."""
    medians = {"idle": found.idle, **medians_of(found)}
    shape = found.load.shape
    lines = []
    for title, of in (("latency", _latency), ("throughput", _throughput)):
        rows = [(name, *_cells(of(figures))) for name, figures in medians.items() if of(figures).tokens_s]
        lines += [f"{title} jobs, ms", table(_HEAD, rows, right=range(1, len(_HEAD))), ""]
    lines += [
        f"targets: first token {shape.ttft_ms} ms, per token {shape.tpot_ms} ms; "
        f"{found.load.backlog} throughput jobs at any time, {shape.rate:g} latency jobs/s",
        *(f"{name}: {knobs}" for name, knobs in found.knobs.items() if knobs),
        "",
        "by seed: latency TTFT p95 in ms / throughput in tokens/s",
        *(f"{name:<12} {_by_seed(runs)}" for name, runs in found.runs.items()),
        "",
        *(f"{name} / tuned {BASELINE}: {_pair(ratio)}" for name, ratio in ratios(found).items()),
    ]
    return "\n".join(lines)


def as_json(found: Comparison, about: Mapping[str, Any]) -> dict[str, Any]:
    """All figures: `policies` holds medians and every seed's, `ratios_vs_priority` ours, {} where none of ours ran."""
    compared = ratios(found)
    return {
        "about": dict(about),
        "load": msgspec.to_builtins(found.load),
        "idle": msgspec.to_builtins(found.idle),
        "policies": {
            name: {
                "knobs": found.knobs[name],
                **msgspec.to_builtins(median),
                "seeds": {str(seed): msgspec.to_builtins(run) for seed, run in found.runs[name].items()},
            }
            for name, median in medians_of(found).items()
        },
        "probes": msgspec.to_builtins(found.probes),
        "ratios": compared,
        "ratios_vs_priority": next((compared[name] for name in OURS if name in compared), {}),
    }


def medians_of(found: Comparison) -> dict[str, Figures]:
    """By policy, over the seeds."""
    return {name: median_of(list(runs.values())) for name, runs in found.runs.items() if runs}


def ratios(found: Comparison) -> dict[str, dict[str, float | None]]:
    """Each policy's figures over those of tuned priority, the median of the seeds' ratios."""
    base = found.runs.get(BASELINE, {})
    compared: dict[str, dict[str, float | None]] = {}
    for name, runs in found.runs.items():
        both = [(runs[seed], base[seed]) for seed in runs if seed in base]
        if name == BASELINE or not both:
            continue
        compared[name] = {
            "latency_ttft_p95": _ratio([(a.latency.ttft_ms.p95, b.latency.ttft_ms.p95) for a, b in both]),
            "throughput": _ratio([(a.throughput.tokens_s, b.throughput.tokens_s) for a, b in both]),
        }
    return compared


def draw(found: Comparison, folder: Path) -> str:
    """Write `mixed.png` and say so, or say why not."""
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return "no pictures: matplotlib is not installed"
    figure, axes = pyplot.subplots(figsize=(9, 6))
    for name, runs in found.runs.items():
        points = [
            (run.throughput.tokens_s, run.latency.ttft_ms.p95) for run in runs.values() if run.latency.jobs
        ]
        axes.scatter(*zip(*points, strict=True), label=name)
    axes.set(xlabel="throughput, output tokens/s", ylabel="latency TTFT p95, ms", yscale="log")
    axes.set_title("each point is a seed; right and low is better")
    axes.legend()
    figure.savefig(folder / "mixed.png", dpi=120)
    pyplot.close(figure)
    return f"wrote {folder / 'mixed.png'}"


def _latency(figures: Figures) -> ClassFigures:
    return figures.latency


def _throughput(figures: Figures) -> ClassFigures:
    return figures.throughput


def _cells(of: ClassFigures) -> tuple[str, ...]:
    late = ">" if of.unanswered else ""
    return (
        *(late + _number(value) for value in (of.ttft_ms.p50, of.ttft_ms.p95, of.ttft_ms.p99)),
        _number(of.tpot_ms.p50),
        _number(of.tpot_ms.p99),
        _number(of.gap_ms.p99),
        _number(of.gap_max_ms),
        "-" if of.goodput is None else f"{of.goodput:.0%}",
        f"{of.tokens_s:.1f}",
        f"{of.jobs_s:.2f}",
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _by_seed(runs: Mapping[int, Figures]) -> str:
    return ", ".join(
        f"{seed}: {_number(run.latency.ttft_ms.p95)} / {run.throughput.tokens_s:.0f}"
        for seed, run in sorted(runs.items())
    )


def _pair(ratio: Mapping[str, float | None]) -> str:
    return ", ".join(f"{name} {'-' if value is None else f'{value:.2f}'}" for name, value in ratio.items())


def _ratio(pairs: list[tuple[float | None, float | None]]) -> float | None:
    found = [ours / theirs for ours, theirs in pairs if ours is not None and theirs]
    return round(statistics.median(found), 4) if found else None

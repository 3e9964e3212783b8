"""Goodput at 90% attainment: the highest load at which both classes still get what they were promised.

Everything is offered open loop: latency jobs with targets for first token and token pace, throughput jobs with
deadlines. Load is a share of what all engines together can do.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from laneway.worker.bench.sim.contenders import Contender, laneway, play, priorities, semaphores, silos
from laneway.worker.bench.sim.metrics import median
from laneway.worker.bench.sim.workloads import Mix

ATTAINMENT = 0.90
"""Share of the jobs of each class that must get what they were promised (DistServe's measure)."""
STEP = 0.025
"""Resolution of the load."""
MOST = 1.2
WORKERS = 4
"""Engines, so that silos can be split three ways."""
DEADLINES = (1.2, 2.0, 4.0)
"""Times the residence in a busy engine. Ten times, as in the deadline workloads, would outlast the run."""
SECONDS = 60.0

MIXES: dict[str, Mix] = {
    "steady, 30% latency": Mix(latency_load=0.3, throughput_load=0.7, deadlines=DEADLINES, seconds=SECONDS),
    "steady, 60% latency": Mix(latency_load=0.6, throughput_load=0.4, deadlines=DEADLINES, seconds=SECONDS),
    "bursty latency": Mix(
        latency_load=0.3, throughput_load=0.7, deadlines=DEADLINES, seconds=SECONDS, cv=4.0
    ),
    "latency spikes": Mix(
        latency_load=0.2, throughput_load=0.8, deadlines=DEADLINES, seconds=SECONDS, spike=5.0
    ),
    "long prompts": Mix(
        latency_load=0.3, throughput_load=0.7, deadlines=DEADLINES, seconds=SECONDS, long_share=0.05
    ),
}
"""Mixes at load 1."""


class Goodput(Struct, frozen=True):
    """The best load of a policy on one mix, per seed."""

    name: str
    knobs: str
    loads: list[float]

    @property
    def load(self) -> float:
        """Median over the seeds."""
        return median(self.loads)


def compare(mix: Mix, seeds: Sequence[int], workers: int = WORKERS) -> list[Goodput]:
    """Laneway and the rivals, each of these tuned on the first seed for this very measure."""
    rivals = [
        _best(family, mix, seeds[0], workers) for family in (silos(workers), priorities(), semaphores())
    ]
    ours = [laneway("laneway 1", level2=False), laneway()]
    return [
        Goodput(each.name, each.knobs, [highest_load(each, mix, seed, workers) for seed in seeds])
        for each in (*rivals, *ours)
    ]


def highest_load(contender: Contender, mix: Mix, seed: int, workers: int, above: float = 0.0) -> float:
    """By bisection over steps of `STEP`; 0 when even the lowest fails, or when `above` cannot be passed."""
    low, high = round(above / STEP), round(MOST / STEP)
    if above and not _attains(contender, mix, seed, workers, (low + 1) * STEP):
        return 0.0
    while low < high:
        middle = (low + high + 1) // 2
        if _attains(contender, mix, seed, workers, middle * STEP):
            low = middle
        else:
            high = middle - 1
    return low * STEP


def _best(family: Sequence[Contender], mix: Mix, seed: int, workers: int) -> Contender:
    best, load = family[0], 0.0
    for contender in family:
        found = highest_load(contender, mix, seed, workers, above=load)
        if found > load:
            best, load = contender, found
    return best


def _attains(contender: Contender, mix: Mix, seed: int, workers: int, load: float) -> bool:
    offered = msgspec.structs.replace(
        mix, latency_load=mix.latency_load * load, throughput_load=mix.throughput_load * load
    )
    figures = play(contender, offered, seed, workers)
    return min(figures.latency_attained, figures.throughput_attained) >= ATTAINMENT

"""Who is compared: Laneway, its ablations, and rivals whose knobs are tuned for the workload at hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import msgspec
from msgspec import Struct

from laneway.worker.bench.sim.calibrate import h200
from laneway.worker.bench.sim.engine import Engine, EngineSpec
from laneway.worker.bench.sim.laneway import Laneway, Options
from laneway.worker.bench.sim.metrics import Figures, measure
from laneway.worker.bench.sim.policies import DumpAll, Semaphore, Silos, StaticBatches
from laneway.worker.bench.sim.workloads import Mix, make_jobs
from laneway.worker.bench.sim.world import Policy, run
from laneway.worker.policy.cost import H200_7B, CostModel

STEP_NOISE = 0.05
"""Standard deviation of a step's duration: what is left over when a linear model is fitted to steps (notes 3.2)."""
PROFILE_ERROR = 1.15
"""Laneway starts from a profile that is wrong by so much in every coefficient, and has to refine it."""
CAPS = (48, 64, 80, 96, 112, 128, 160, 200, 240)
BUDGETS = (512, 1024, 2048)
LONG_PREFILLS = (0, 256)


class Contender(Struct, frozen=True, kw_only=True):
    """A policy on an engine set up for it."""

    name: str
    make: Callable[[Sequence[Engine]], Policy]
    spec: EngineSpec
    knobs: str = ""
    """How it was tuned."""


def profile() -> CostModel:
    """What Laneway believes at the start of a run."""
    return CostModel(
        base_s=H200_7B.base_s * PROFILE_ERROR,
        prefill_s=H200_7B.prefill_s * PROFILE_ERROR,
        decode_s=H200_7B.decode_s * PROFILE_ERROR,
        kv_s=H200_7B.kv_s * PROFILE_ERROR,
    )


def play(contender: Contender, mix: Mix, seed: int, workers: int = 1) -> Figures:
    """One run in virtual time."""
    jobs = make_jobs(mix, contender.spec.model, seed, workers)
    engines = [Engine(contender.spec, Random(f"engine {i} {seed}")) for i in range(workers)]
    run(contender.make(engines), engines, jobs, mix.seconds)
    return measure(jobs, mix.seconds)


def laneway(name: str = "laneway 1+2", **options: object) -> Contender:
    """Laneway with `Options` changed."""
    chosen = msgspec.structs.replace(Options(), **options)
    return Contender(name=name, make=lambda engines: Laneway(engines, chosen, profile()), spec=_spec())


def ablations() -> list[Contender]:
    """Laneway with one part left out each."""
    parts = ("reserve", "budget", "deadlines", "cold", "fair", "late", "haste")
    return [laneway(f"- {part}", **{part: False}) for part in parts]


def static(size: int = 256) -> Contender:
    """Static batches."""
    spec = _spec(by_priority=False)
    return Contender(name="static batches", make=lambda engines: StaticBatches(engines, size), spec=spec)


def fifo() -> Contender:
    """Everything into the engine at once, first come, first served."""
    return Contender(name="fifo", make=DumpAll, spec=_spec(by_priority=False))


def priorities() -> list[Contender]:
    """vLLM's priority policy with everything in the engine, over its knobs."""
    return [
        Contender(
            name="vllm priority",
            make=DumpAll,
            spec=_spec(step_tokens=budget, long_prefill=cap, seats=seats),
            knobs=f"budget {budget}, threshold {cap}, seats {seats}",
        )
        for budget in BUDGETS
        for cap in LONG_PREFILLS
        for seats in (64, 96, 128, 192, 256)
    ]


def semaphores() -> list[Contender]:
    """A semaphore by job count and vLLM's priority, over its knobs."""
    return [
        Contender(
            name="semaphore",
            make=lambda engines, permits=permits: Semaphore(engines, permits),  # type: ignore[misc]
            spec=_spec(step_tokens=budget, long_prefill=cap),
            knobs=f"{permits} permits, budget {budget}, threshold {cap}",
        )
        for permits in CAPS
        for budget in BUDGETS
        for cap in LONG_PREFILLS
    ]


def silos(workers: int) -> list[Contender]:
    """Every split of the workers into one group per class."""
    return [
        Contender(
            name="silos",
            make=lambda engines, first=first: Silos(engines, first),  # type: ignore[misc]
            spec=_spec(by_priority=False, step_tokens=budget),
            knobs=f"{first} of {workers} for latency, budget {budget}",
        )
        for first in range(1, workers)
        for budget in BUDGETS
    ]


def tuned(family: Sequence[Contender], score: Callable[[Contender], float]) -> Contender:
    """The member with the best score, ties to the first."""
    return max(family, key=score)


def _spec(**changes: object) -> EngineSpec:
    return h200(noise=STEP_NOISE, **changes)

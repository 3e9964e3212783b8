"""Workloads: jobs with their arrivals, all drawn from one seed.

Latency prompts are short and chat-like, throughput jobs have the three sizes of the H200 flood. Loads are shares of
what one engine can do (`work_s`), times the number of workers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from random import Random

from msgspec import Struct

from laneway.schemas.job import SloClass
from laneway.worker.bench.sim.jobs import SimJob
from laneway.worker.policy.cost import CostModel

TTFT_S = 0.2
"""Target for the first token of a short prompt: the floor that the notes set for a GPU (4.3)."""
TTFT_FACTOR = 5.0
"""For longer prompts: so many times what an idle engine needs (notes 4.3)."""
TPOT_S = 0.05
"""Target between tokens: 20 a second, `BudgetRule.tpot_s`."""
BUSY = 200
"""Sequences that share a step's fixed cost when an engine is saturated: about where a 7B on an H200 ends up."""
SPIKE_S = 5.0
"""Length of a spike of latency jobs, seconds."""
MAX_TOKENS = 1024
"""What every job allows itself, whatever it will really generate."""


class Mix(Struct, frozen=True, kw_only=True):
    """What is offered. Loads are shares of the capacity of all workers."""

    latency_load: float
    throughput_load: float = 0.0
    """Poisson arrivals; 0 with `backlog`: everything is there at the start."""
    backlog: bool = False
    seconds: float = 120.0
    cv: float = 1.0
    """Coefficient of variation of the gaps between latency jobs: 1 Poisson, 4 bursts."""
    spike: float = 1.0
    """Factor on the latency rate for `SPIKE_S` from the middle of each minute on."""
    long_share: float = 0.0
    """Share of throughput jobs with a prompt of 16,000 to 32,000 tokens."""
    deadlines: tuple[float, ...] = ()
    """Throughput deadlines, as multiples of the time a job takes in a busy engine."""
    tenants: dict[str, float] = {}
    """Throughput load per tenant, in place of `throughput_load`."""
    adapters: int = 0
    """Adapters of throughput jobs, drawn by Zipf(1.0); 0: the base model only."""
    latency_adapters: int = 0
    """Of these, the hottest, which latency jobs draw from alike."""


WORKLOADS: dict[str, Mix] = {
    "mixed": Mix(latency_load=0.3, backlog=True),
    "bursts": Mix(latency_load=0.15, backlog=True, cv=4.0, spike=10.0, seconds=180.0),
    "long": Mix(latency_load=0.3, backlog=True, long_share=0.05),
    "deadlines95": Mix(latency_load=0.3, throughput_load=0.65, deadlines=(1.2, 2.0, 10.0), seconds=180.0),
    "deadlines120": Mix(latency_load=0.3, throughput_load=0.9, deadlines=(1.2, 2.0, 10.0), seconds=180.0),
    "overload": Mix(latency_load=0.9, throughput_load=0.6),
    "tenants": Mix(latency_load=0.1, tenants={"small": 0.4, "middle": 1.6, "large": 6.4}),
    "workers": Mix(latency_load=0.2, backlog=True, adapters=32, latency_adapters=8, seconds=60.0),
    "adapters": Mix(latency_load=0.2, backlog=True, adapters=32, latency_adapters=2, seconds=60.0),
}
WORKERS = {"workers": 4}
"""Engines of a workload; 1 where it is not named."""


def work_s(model: CostModel, prompt: float, output: float) -> float:
    """GPU seconds that a job takes of a saturated engine."""
    per_token = model.base_s / BUSY + model.decode_s + model.kv_s * (prompt + output / 2)
    return model.prefill_s * prompt + output * per_token


def busy_token_s(model: CostModel) -> float:
    """Seconds between two tokens of a job in a saturated engine, with the flood's mean sizes."""
    prompt, output = 597, 149
    per_job = work_s(model, prompt, output)
    return BUSY * per_job / output


def draw_latency(rng: Random) -> tuple[int, int]:
    """(prompt, output) tokens: lognormal, medians 256 and 96."""
    return _lognormal(rng, 256, 0.7, 32, 2048), _lognormal(rng, 96, 0.6, 8, 512)


def draw_throughput(rng: Random, long_share: float) -> tuple[int, int]:
    """(prompt, output) tokens of the H200 flood, now and then with a very long prompt."""
    prompt = rng.randint(16_000, 32_000) if rng.random() < long_share else rng.choice((256, 512, 1024))
    return prompt, rng.choice((64, 128, 256))


def make_jobs(mix: Mix, model: CostModel, seed: int, workers: int = 1) -> list[SimJob]:
    """All jobs of a run, by arrival."""
    latency_work = _mean_work(model, lambda rng: draw_latency(rng))
    throughput_work = _mean_work(model, lambda rng: draw_throughput(rng, mix.long_share))
    rng = Random(f"latency {seed}")
    arrivals = _arrivals(rng, mix, workers * mix.latency_load / latency_work)
    jobs = [_latency_job(rng, mix, model, at) for at in arrivals]
    tenants = mix.tenants or {"default": mix.throughput_load}
    for tenant, load in tenants.items():
        rng = Random(f"throughput {tenant} {seed}")
        rate = workers * (1.3 if mix.backlog else load) / throughput_work
        count = int(rate * mix.seconds)
        times = [0.0] * count if mix.backlog else sorted(rng.uniform(0, mix.seconds) for _ in range(count))
        jobs += [_throughput_job(rng, mix, model, at, tenant) for at in times]
    jobs.sort(key=lambda job: job.arrival)
    for number, job in enumerate(jobs):
        job.id = number
    return jobs


def _mean_work(model: CostModel, draw: Callable[[Random], tuple[int, int]]) -> float:
    rng = Random(0)
    return sum(work_s(model, *draw(rng)) for _ in range(4000)) / 4000


def _arrivals(rng: Random, mix: Mix, rate: float) -> Iterator[float]:
    """Gamma gaps; during a spike time runs faster. `rate` is the mean over a whole minute."""
    if rate <= 0:
        return
    base = rate / (1 + (mix.spike - 1) * SPIKE_S / 60)
    shape = 1 / mix.cv**2
    at = 0.0
    while True:
        here = base * (mix.spike if 0 <= at % 60 - 30 < SPIKE_S else 1.0)
        at += rng.gammavariate(shape, 1 / (shape * here))
        if at >= mix.seconds:
            return
        yield at


def _latency_job(rng: Random, mix: Mix, model: CostModel, at: float) -> SimJob:
    prompt, output = draw_latency(rng)
    ttft = max(TTFT_S, TTFT_FACTOR * model.step_s(prompt, 0, 0))
    return SimJob(
        id=0,
        slo=SloClass.LATENCY,
        arrival=at,
        prompt=prompt,
        output=output,
        max_tokens=MAX_TOKENS,
        ttft_s=ttft,
        tpot_s=TPOT_S,
        adapter=_adapter(rng, mix.latency_adapters),
    )


def _throughput_job(rng: Random, mix: Mix, model: CostModel, at: float, tenant: str) -> SimJob:
    prompt, output = draw_throughput(rng, mix.long_share)
    deadline = None
    if mix.deadlines:
        fair = prompt * model.prefill_s + output * busy_token_s(model)
        deadline = at + rng.choice(mix.deadlines) * fair
    return SimJob(
        id=0,
        slo=SloClass.THROUGHPUT,
        arrival=at,
        prompt=prompt,
        output=output,
        max_tokens=MAX_TOKENS,
        deadline=deadline,
        tenant=tenant,
        adapter=_adapter(rng, mix.adapters),
    )


def _lognormal(rng: Random, median: float, sigma: float, low: int, high: int) -> int:
    return int(min(high, max(low, rng.lognormvariate(math.log(median), sigma))))


def _adapter(rng: Random, count: int) -> str | None:
    if count == 0:
        return None
    return rng.choices(_names(count), weights=[1 / (i + 1) for i in range(count)])[0]


def _names(count: int) -> Sequence[str]:
    return [f"adapter-{i:02d}" for i in range(count)]

"""How far the simulator is from an H200: the same experiments, measured there and computed here.

Measured: Llama-7B shape, dummy bf16 weights, 256 seats, 2,048 tokens per step, async scheduling, prefix cache off. A
closed-loop flood (256/512/1024 in, 64/128/256 out) with at most CAP jobs in the engine, beside 8 Poisson probes a
second (128 in, 16 out).
"""

from __future__ import annotations

from random import Random

from msgspec import Struct

from laneway.schemas.job import SloClass
from laneway.worker.bench.sim.engine import Engine, EngineSpec, Limits
from laneway.worker.bench.sim.jobs import SimJob
from laneway.worker.bench.sim.metrics import Figures, measure
from laneway.worker.bench.sim.policies import DumpAll, Semaphore
from laneway.worker.bench.sim.workloads import draw_throughput
from laneway.worker.bench.sim.world import run
from laneway.worker.policy.cost import H200_7B

PROBES_PER_S = 8.0
SECONDS = 90.0
"""Virtual time of a flood. The measurement had 120 probes, 15 s; more probes steady the 99th percentile."""


class Row(Struct, frozen=True, kw_only=True):
    """One experiment: what the H200 showed, milliseconds and jobs per second."""

    name: str
    cap: int
    budget: int = 2048
    """Tokens of a step while a latency job waits or runs."""
    rate: float
    ttft_p50: float
    ttft_p99: float
    gap_p99: float
    ahead: bool = True


MEASURED = (
    Row(name="cap 256", cap=256, rate=28.1, ttft_p50=170, ttft_p99=234, gap_p99=98),
    Row(name="cap 240", cap=240, rate=26.7, ttft_p50=165, ttft_p99=228, gap_p99=94),
    Row(name="cap 224", cap=224, rate=26.4, ttft_p50=148, ttft_p99=214, gap_p99=102),
    Row(name="cap 192", cap=192, rate=26.9, ttft_p50=141, ttft_p99=214, gap_p99=104),
    Row(name="budget 2048", cap=240, budget=2048, rate=27.4, ttft_p50=153, ttft_p99=226, gap_p99=95),
    Row(name="budget 1280", cap=240, budget=1280, rate=26.3, ttft_p50=152, ttft_p99=217, gap_p99=80),
    Row(name="budget 896", cap=240, budget=896, rate=27.7, ttft_p50=132, ttft_p99=194, gap_p99=54),
    Row(name="budget 640", cap=240, budget=640, rate=29.6, ttft_p50=113, ttft_p99=218, gap_p99=46),
    Row(name="budget 448", cap=240, budget=448, rate=26.0, ttft_p50=119, ttft_p99=213, gap_p99=43),
    Row(name="sync 2048", cap=240, rate=25.2, ttft_p50=109, ttft_p99=167, gap_p99=90, ahead=False),
    Row(name="sync 896", cap=240, budget=896, rate=25.5, ttft_p50=95, ttft_p99=169, gap_p99=63, ahead=False),
)
OFFLINE_RATE = 37.2
"""Jobs per second of 512 jobs, 512 in and 128 out, all at once."""
IDLE_TTFT_MS = 14.0
"""First token of a 128-token prompt in an idle engine."""


def h200(**changes: object) -> EngineSpec:
    """The H200 of the measurements; keyword arguments replace fields of `EngineSpec`."""
    fields: dict[str, object] = {
        "model": H200_7B,
        "seats": 256,
        "step_tokens": 2048,
        "kv_tokens": H200_KV_TOKENS,
        "reply_s": REPLY_S,
        "max_loras": 4,
        "load_s": ADAPTER_LOAD_S,
        "lora_factor": LORA_FACTOR,
    }
    return EngineSpec(**(fields | changes))  # type: ignore[arg-type]


H200_KV_TOKENS = 220_000
"""139 GiB * 0.92 less 12.5 GiB of weights and about 8 GiB of activations and graphs, at 512 KiB per token."""
REPLY_S = 0.003
"""Of the 14 ms to the first token of an idle engine, what a 128-token step does not explain."""
ADAPTER_LOAD_S = 0.027
"""`add_lora` of a rank-16 adapter: 25 to 29 ms."""
LORA_FACTOR = 37.2 / 31.4
"""512 jobs at once without adapters and over four of them: 37.2 and 31.4 jobs a second."""
SYNC_HOST_S = 0.004
"""Host time per step that async scheduling hides: 8% of a step of about 55 ms."""


def flood(row: Row, spec: EngineSpec, seed: int = 0) -> Figures:
    """Run one row's experiment."""
    if not row.ahead:
        model = spec.model
        slower = type(model)(
            base_s=model.base_s + SYNC_HOST_S,
            prefill_s=model.prefill_s,
            decode_s=model.decode_s,
            kv_s=model.kv_s,
        )
        spec = _replace(spec, model=slower, ahead=False)

    def hook(engine: Engine) -> Limits:
        busy = engine.waiting_latency() or any(job.latency for job in engine.running.values())
        return Limits(row.budget if busy else spec.step_tokens)

    engine = Engine(spec, Random(seed), hook)
    jobs = _flood_jobs(seed)
    run(Semaphore([engine], row.cap), [engine], jobs, SECONDS)
    return measure(jobs, SECONDS)


def offline(spec: EngineSpec) -> float:
    """Jobs per second of 512 equal jobs submitted at once."""
    engine = Engine(spec, Random(0))
    jobs = [_job(i, SloClass.THROUGHPUT, 0.0, 512, 128) for i in range(512)]
    run(DumpAll([engine]), [engine], jobs, 1e6)
    return len(jobs) / max(job.ended for job in jobs)


def idle_ttft_ms(spec: EngineSpec) -> float:
    """First token of a 128-token prompt in an idle engine, milliseconds."""
    engine = Engine(spec, Random(0))
    job = _job(0, SloClass.LATENCY, 0.0, 128, 16)
    run(DumpAll([engine]), [engine], [job], 1e6)
    return job.ttft * 1000


def _replace(spec: EngineSpec, **changes: object) -> EngineSpec:
    fields = {name: getattr(spec, name) for name in spec.__struct_fields__}
    return EngineSpec(**(fields | changes))


def _flood_jobs(seed: int) -> list[SimJob]:
    rng = Random(seed)
    jobs = [_job(i, SloClass.THROUGHPUT, 0.0, *draw_throughput(rng, 0.0)) for i in range(int(45 * SECONDS))]
    at = rng.expovariate(PROBES_PER_S)
    while at < SECONDS:
        jobs.append(_job(len(jobs), SloClass.LATENCY, at, 128, 16))
        at += rng.expovariate(PROBES_PER_S)
    return jobs


def _job(number: int, slo: SloClass, at: float, prompt: int, output: int) -> SimJob:
    return SimJob(id=number, slo=slo, arrival=at, prompt=prompt, output=output, max_tokens=output)

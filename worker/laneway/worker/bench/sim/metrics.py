"""What a run shows, per class. The first fifth of a run is left out: it fills the engine."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from laneway.worker.bench.sim.jobs import SimJob

WARMUP_SHARE = 0.2
"""Share of a run that is not judged (notes 4.2)."""


class Figures(Struct, frozen=True, kw_only=True):
    """One run. Seconds, jobs per second, tokens per second, shares."""

    ttft_p50: float
    ttft_p95: float
    ttft_p99: float
    tpot_p50: float
    tpot_p99: float
    gap_p99: float
    """Worst gap between two tokens of a latency job, 99th percentile over jobs."""
    latency_rate: float
    throughput_rate: float
    throughput_tokens: float
    """Prompt and output tokens of throughput jobs per second."""
    latency_attained: float
    throughput_attained: float
    """Share of throughput jobs that ended by their deadline; 1 where there is none."""
    goodput: float
    """Jobs per second, of both classes, that got what they were promised."""
    jain: float
    """Of the service per tenant: 1 means equal."""
    longest_wait: float
    """Longest time that a throughput job waited to be admitted, of those that were."""


def measure(jobs: Sequence[SimJob], seconds: float) -> Figures:
    """Judge a run that ended at `seconds`."""
    begin = WARMUP_SHARE * seconds
    window = seconds - begin
    latency = [job for job in jobs if job.latency and begin <= job.arrival < seconds - _grace(job)]
    offered = [job for job in jobs if not job.latency and begin <= job.arrival < seconds - _grace(job)]
    ended = [job for job in jobs if begin <= job.ended < seconds and not job.expired]
    batch = [job for job in ended if not job.latency]
    ttfts = [job.ttft if job.first >= 0 else seconds - job.arrival for job in latency]
    done = [job for job in latency if job.ended >= 0]
    return Figures(
        ttft_p50=percentile(ttfts, 50),
        ttft_p95=percentile(ttfts, 95),
        ttft_p99=percentile(ttfts, 99),
        tpot_p50=percentile([job.tpot for job in done], 50),
        tpot_p99=percentile([job.tpot for job in done], 99),
        gap_p99=percentile([job.worst_gap for job in done], 99),
        latency_rate=(len(ended) - len(batch)) / window,
        throughput_rate=len(batch) / window,
        throughput_tokens=sum(job.prompt + job.output for job in batch) / window,
        latency_attained=_share(latency),
        throughput_attained=_share([job for job in offered if job.deadline is not None]),
        goodput=sum(job.attained for job in ended) / window,
        jain=jain(_service(batch, jobs)),
        longest_wait=max(
            (j.admitted - j.arrival for j in jobs if not j.latency and j.admitted >= 0), default=0.0
        ),
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """Nearest rank; 0 for nothing."""
    if not values:
        return 0.0
    return sorted(values)[min(len(values) - 1, int(len(values) * percent / 100))]


def median(values: Sequence[float]) -> float:
    """The middle value, the mean of the two middle ones for an even count."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def jain(service: Sequence[float]) -> float:
    """(sum x)^2 / (n * sum x^2): 1 when all are equal, 1/n when one has all."""
    squares = sum(x * x for x in service)
    return sum(service) ** 2 / (len(service) * squares) if squares else 1.0


def _service(ended: Sequence[SimJob], jobs: Sequence[SimJob]) -> list[float]:
    """Weighted tokens per tenant, as the fairness policy counts them: an output token is two."""
    service = {job.tenant: 0.0 for job in jobs if not job.latency}
    for job in ended:
        service[job.tenant] += job.prompt + 2 * job.output
    return list(service.values())


def _grace(job: SimJob) -> float:
    """Jobs that came too late to be judged are left out: their target lies beyond the end of the run."""
    if job.latency:
        return job.ttft_s + job.output * job.tpot_s
    return max(0.0, job.deadline - job.arrival) if job.deadline is not None else 0.0


def _share(jobs: Sequence[SimJob]) -> float:
    return sum(job.attained for job in jobs) / len(jobs) if jobs else 1.0

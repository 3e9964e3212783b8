"""What a scrape shows."""

from __future__ import annotations

import re

from prometheus_client import CollectorRegistry

from laneway.schemas.keys import lanes
from laneway.worker.metrics import Measures, Metrics
from laneway.worker.ports import Depth, EngineStats
from laneway.worker.telemetry import Telemetry

NOW = Measures(
    phase="ready",
    up=True,
    depths=None,
    now_ms=10_000,
    seats=16,
    seats_taken=3,
    jobs=2,
    engine=EngineStats(),
    events_dropped=0,
)


def values(metrics: Metrics, now: Measures = NOW) -> dict[str, float]:
    lines = metrics.render(now).decode().splitlines()
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")
    }


def test_every_series_carries_the_prefix_and_exists_before_anything_happened() -> None:
    """A series that appears with its first event hides that event from every rate."""
    series = values(Metrics(CollectorRegistry()))
    assert all(name.startswith("laneway_") for name in series)
    assert series['laneway_jobs_settled_total{bucket="long",outcome="expired",slo="throughput"}'] == 0
    assert series['laneway_time_to_first_token_seconds_count{bucket="short",slo="latency"}'] == 0
    assert series['laneway_jobs_dead_lettered_total{slo="latency"}'] == 0


def test_a_settled_job_is_counted_with_its_figures() -> None:
    """Count, whole life, tokens and time per token come from one fact."""
    metrics = Metrics(CollectorRegistry())
    Telemetry(metrics.listen).tell(
        "job.settled", slo="latency", bucket="short", outcome="completed", seconds=1.5,
        prompt_tokens=10, cached_tokens=4, output_tokens=20, tpot_s=0.02,
    )  # fmt: skip
    series = values(metrics)
    assert series['laneway_jobs_settled_total{bucket="short",outcome="completed",slo="latency"}'] == 1
    assert series['laneway_job_seconds_sum{bucket="short",slo="latency"}'] == 1.5
    assert series['laneway_output_tokens_total{slo="latency"}'] == 20
    assert series['laneway_time_per_output_token_seconds_count{slo="latency"}'] == 1


def test_no_label_names_a_tenant_a_job_or_an_adapter() -> None:
    """Labels are few and bounded, whatever jobs carry."""
    metrics = Metrics(CollectorRegistry())
    telemetry = Telemetry(metrics.listen)
    for event in (
        "job.claimed",
        "job.first_token",
        "job.retried",
        "job.lost",
        "job.fenced",
        "job.handed_back",
    ):
        telemetry.tell(event, job_id="canary", slo="latency", bucket="short", lora="canary", reason="canary")
    text = metrics.render(NOW).decode()
    assert "canary" not in text
    assert set(re.findall(r"[{,](\w+)=", text)) == {"slo", "bucket", "outcome", "le", "phase"}


def test_depths_are_those_of_this_moment_or_none() -> None:
    """An old depth is worse than none: when the server does not tell, the series is gone."""
    metrics = Metrics(CollectorRegistry())
    lane = lanes(0)[0]
    name = 'laneway_lane_waiting{bucket="short",slo="latency"}'
    now = NOW._replace(depths=[Depth(lane, 7, 2, 4000), Depth(lanes(1)[0], 1, 0, 8000)])
    assert values(metrics, now)[name] == 8
    assert values(metrics, now)[name] == 8
    assert values(metrics, now)['laneway_lane_oldest_seconds{bucket="short",slo="latency"}'] == 6
    assert name not in values(metrics, NOW)


def test_an_event_that_nobody_knows_is_no_harm() -> None:
    """Metrics never stop the work."""
    metrics = Metrics(CollectorRegistry())
    telemetry = Telemetry(metrics.listen)
    telemetry.tell("something.new", slo="latency")
    telemetry.tell("job.claimed", slo="latency", bucket="short")
    assert values(metrics)['laneway_jobs_claimed_total{bucket="short",slo="latency"}'] == 1

"""Facts and measures as Prometheus series. All are declared here, and all that can start at 0 do.

The registry is our own: vLLM removes collectors of its name from the default one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import NamedTuple

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from laneway.schemas.job import Bucket, SloClass
from laneway.schemas.state import FINAL_STATES
from laneway.worker.ports import Depth, EngineStats
from laneway.worker.telemetry import Fact

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SHORT_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_LONG_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 4 * 3600)
_TOKEN_S = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1)
_SLOS = tuple(slo.value for slo in SloClass)
_LANES = tuple(itertools.product(_SLOS, (bucket.value for bucket in Bucket)))
PHASES = ("starting", "warming", "ready", "draining", "ending")


class Measures(NamedTuple):
    """What is read when somebody asks for the metrics."""

    phase: str
    up: bool
    """Whether the server answers."""
    depths: Iterable[Depth] | None
    """None: the server did not tell."""
    now_ms: int
    """By the server's clock."""
    seats: int
    seats_taken: int
    jobs: int
    engine: EngineStats
    events_dropped: int
    cost_error: float = 0.0


class Metrics:
    """All series of a worker. `listen` is told facts; `render` adds what is measured at that moment."""

    def __init__(self, engine: CollectorRegistry = REGISTRY) -> None:
        """`engine` is where vLLM registers its own series: the default registry."""
        self.registry = CollectorRegistry()
        self._count_jobs(("slo", "bucket"), ("slo",))
        self._measure_worker(("slo", "bucket"))
        self._measure_engine()
        self._start_at_zero()
        self.registry.register(_EngineSeries(engine))

    def _count_jobs(self, lane: tuple[str, ...], slo: tuple[str, ...]) -> None:
        self._claimed = self._counter("jobs_claimed", "Jobs taken in hand.", lane)
        self._settled = self._counter("jobs_settled", "Jobs whose outcome was stored.", (*lane, "outcome"))
        self._fenced = self._counter("jobs_fenced", "Outcomes refused: somebody else had the job.", slo)
        self._retried = self._counter("jobs_retried", "Failed attempts that another follows.", slo)
        self._dead = self._counter("jobs_dead_lettered", "Jobs given up, and unreadable entries.", slo)
        self._back = self._counter("jobs_handed_back", "Jobs returned unharmed.", slo)
        self._resumed = self._counter(
            "jobs_resumed", "Attempts that went on from the tokens of an earlier one.", slo
        )
        self._lost = self._counter("jobs_lost", "Jobs dropped because their lease was gone.", slo)
        self._prompt = self._counter("prompt_tokens", "Prompt tokens of settled jobs.", slo)
        self._cached = self._counter("cached_prompt_tokens", "Those of them found in the prefix cache.", slo)
        self._output = self._counter("output_tokens", "Tokens generated for settled jobs.", slo)
        self._outages = self._counter("queue_outages", "Times that the server went away.", ())
        self._wait = self._histogram("queue_wait_seconds", "Acceptance to claim.", lane, _LONG_S)
        self._ttft = self._histogram(
            "time_to_first_token_seconds", "Acceptance to first token.", lane, _SHORT_S
        )
        self._life = self._histogram("job_seconds", "Acceptance to outcome.", lane, _LONG_S)
        self._tpot = self._histogram(
            "time_per_output_token_seconds", "Per token after the first.", slo, _TOKEN_S
        )

    def _measure_worker(self, lane: tuple[str, ...]) -> None:
        self._phase = self._gauge("worker_phase", "1 for the phase that the worker is in.", ("phase",))
        self._up = self._gauge("queue_up", "Whether the server answers.", ())
        self._seats = self._gauge("seats", "Sequences that the engine runs at once.", ())
        self._seats_taken = self._gauge("seats_taken", "Seats in use.", ())
        self._jobs = self._gauge("jobs_in_hand", "Jobs under a lease of this worker.", ())
        self._waiting = self._gauge("lane_waiting", "Jobs waiting in a lane, over all partitions.", lane)
        self._pending = self._gauge("lane_pending", "Jobs of a lane in hand of any worker.", lane)
        self._oldest = self._gauge(
            "lane_oldest_seconds", "Age of the job that waits longest in a lane.", lane
        )
        self._dropped = self._gauge("token_events_dropped", "Token events dropped for slow streams.", ())

    def _measure_engine(self) -> None:
        self._running = self._gauge("engine_running", "Sequences running in the engine.", ())
        self._queued = self._gauge("engine_waiting", "Sequences waiting in the engine.", ())
        self._kv = self._gauge("engine_kv_usage", "Share of KV blocks in use.", ())
        self._error = self._gauge(
            "cost_model_error", "Mean relative error of the predicted step time, 0 to 1 and more.", ()
        )
        self._engine = {
            "steps": self._gauge("engine_steps", "Engine steps so far.", ()),
            "generated_tokens": self._gauge("engine_generated_tokens", "Tokens generated so far.", ()),
            "preemptions": self._gauge("engine_preemptions", "Sequences preempted so far.", ()),
            "prefix_queries": self._gauge("engine_prefix_queries", "Prompt tokens looked up so far.", ()),
            "prefix_hits": self._gauge("engine_prefix_hits", "Prompt tokens found so far.", ()),
        }

    def listen(self, fact: Fact) -> None:
        """Count a fact."""
        lane = (fact.slo, fact.bucket)
        if fact.event == "job.claimed":
            self._claimed.labels(*lane).inc()
            self._wait.labels(*lane).observe(fact.seconds)
        elif fact.event == "job.first_token":
            self._ttft.labels(*lane).observe(fact.seconds)
        elif fact.event == "job.settled":
            self._count_settled(fact)
        elif fact.event == "queue.unavailable":
            self._outages.inc()
        elif fact.event in self._by_class:
            self._by_class[fact.event].labels(fact.slo).inc()

    def _count_settled(self, fact: Fact) -> None:
        lane = (fact.slo, fact.bucket)
        self._settled.labels(*lane, fact.outcome).inc()
        self._life.labels(*lane).observe(fact.seconds)
        for series, name in (
            (self._prompt, "prompt_tokens"),
            (self._cached, "cached_tokens"),
            (self._output, "output_tokens"),
        ):
            series.labels(fact.slo).inc(fact.data.get(name, 0))
        if "tpot_s" in fact.data:
            self._tpot.labels(fact.slo).observe(fact.data["tpot_s"])

    def render(self, now: Measures) -> bytes:
        """The exposition, in Prometheus' text format."""
        for phase in PHASES:
            self._phase.labels(phase).set(phase == now.phase)
        self._up.set(now.up)
        self._seats.set(now.seats)
        self._seats_taken.set(now.seats_taken)
        self._jobs.set(now.jobs)
        self._running.set(now.engine.running)
        self._queued.set(now.engine.waiting)
        self._kv.set(now.engine.kv_usage)
        for name, gauge in self._engine.items():
            gauge.set(getattr(now.engine, name))
        self._error.set(now.cost_error)
        self._dropped.set(now.events_dropped)
        self._set_depths(now)
        return generate_latest(self.registry)

    def _set_depths(self, now: Measures) -> None:
        # An old depth is worse than none: it looks like news.
        for series in (self._waiting, self._pending, self._oldest):
            series.clear()
        ages: dict[tuple[str, str], float] = {}
        for depth in now.depths or ():
            lane = (depth.lane.slo.value, depth.lane.bucket.value)
            self._waiting.labels(*lane).inc(depth.waiting)
            self._pending.labels(*lane).inc(depth.pending)
            age = (now.now_ms - depth.oldest_ms) / 1000 if depth.oldest_ms else 0.0
            ages[lane] = max(ages.get(lane, 0.0), age)
        for lane, age in ages.items():
            self._oldest.labels(*lane).set(age)

    def _start_at_zero(self) -> None:
        self._by_class = {
            "job.fenced": self._fenced,
            "job.retried": self._retried,
            "job.dead_lettered": self._dead,
            "job.handed_back": self._back,
            "job.lost": self._lost,
            "job.resumed": self._resumed,
        }
        for slo in _SLOS:
            for series in (*self._by_class.values(), self._prompt, self._cached, self._output, self._tpot):
                series.labels(slo)
        for lane in _LANES:
            for series in (self._claimed, self._wait, self._ttft, self._life):
                series.labels(*lane)
            for state in FINAL_STATES:
                self._settled.labels(*lane, state.value)

    def _counter(self, name: str, text: str, labels: tuple[str, ...]) -> Counter:
        return Counter(f"laneway_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, labels: tuple[str, ...]) -> Gauge:
        return Gauge(f"laneway_{name}", text, labels, registry=self.registry)

    def _histogram(
        self, name: str, text: str, labels: tuple[str, ...], buckets: tuple[float, ...]
    ) -> Histogram:
        return Histogram(f"laneway_{name}", text, labels, buckets=buckets, registry=self.registry)


class _EngineSeries(Collector):
    """What vLLM exports of itself, where it runs in this process."""

    def __init__(self, source: CollectorRegistry) -> None:
        self._source = source

    def collect(self) -> Iterable[Metric]:
        return [family for family in self._source.collect() if family.name.startswith("vllm")]

"""What Laneway is compared with. Each is as good as its idea allows; their knobs are tuned by `command`."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from laneway.worker.bench.sim.engine import Batch, Engine
from laneway.worker.bench.sim.jobs import SimJob

HIGH, LOW = 0, 10
"""vLLM priorities of latency and throughput jobs; lower goes first."""


def _least_loaded(engines: Sequence[Engine]) -> Engine:
    return min(engines, key=lambda engine: len(engine.running) + engine.waiting)


class DumpAll:
    """Everything goes straight into the engine: FIFO, or by priority where the engine is set so."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = engines

    def arrive(self, job: SimJob, now: float) -> None:
        """To the engine with the fewest jobs."""
        _least_loaded(self._engines).submit(job, now, HIGH if job.latency else LOW)

    def stepped(self, engine: Engine, batch: Batch, now: float) -> None:
        """Nothing to do."""


class StaticBatches:
    """Gather up to `size` jobs in order of arrival, run them, wait for the last; then the next batch."""

    def __init__(self, engines: Sequence[Engine], size: int) -> None:
        self._engines = engines
        self._size = size
        self._waiting: deque[SimJob] = deque()

    def arrive(self, job: SimJob, now: float) -> None:
        """Wait for the next batch."""
        self._waiting.append(job)
        for engine in self._engines:
            self._next(engine, now)

    def stepped(self, engine: Engine, batch: Batch, now: float) -> None:
        """The next batch goes when the engine is empty."""
        self._next(engine, now)

    def _next(self, engine: Engine, now: float) -> None:
        if engine.running or engine.waiting:
            return
        for _ in range(min(self._size, len(self._waiting))):
            engine.submit(self._waiting.popleft(), now)


class Semaphore:
    """At most `cap` throughput jobs in an engine, by count, FIFO; latency jobs go straight in, with priority."""

    def __init__(self, engines: Sequence[Engine], cap: int) -> None:
        self._engines = engines
        self._cap = cap
        self._inside = {id(engine): 0 for engine in engines}
        self._waiting: deque[SimJob] = deque()

    def arrive(self, job: SimJob, now: float) -> None:
        """Latency jobs at once, throughput jobs when a permit is free."""
        if job.latency:
            _least_loaded(self._engines).submit(job, now, HIGH)
            return
        self._waiting.append(job)
        self._fill(now)

    def stepped(self, engine: Engine, batch: Batch, now: float) -> None:
        """Every finished throughput job frees a permit."""
        ended = sum(1 for job, run in batch.finish if not job.latency and job.run == run)
        if ended:
            self._inside[id(engine)] -= ended
            self._fill(now)

    def _fill(self, now: float) -> None:
        while self._waiting:
            engine = min(self._engines, key=lambda e: self._inside[id(e)])
            if self._inside[id(engine)] >= self._cap:
                return
            self._inside[id(engine)] += 1
            engine.submit(self._waiting.popleft(), now, LOW)


class Silos:
    """Each class has engines of its own: the first `latency_engines` serve latency, the rest throughput."""

    def __init__(self, engines: Sequence[Engine], latency_engines: int) -> None:
        self._latency = engines[:latency_engines]
        self._throughput = engines[latency_engines:]

    def arrive(self, job: SimJob, now: float) -> None:
        """To the least loaded engine of its class, all at once."""
        _least_loaded(self._latency if job.latency else self._throughput).submit(job, now)

    def stepped(self, engine: Engine, batch: Batch, now: float) -> None:
        """Nothing to do."""

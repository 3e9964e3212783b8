"""The clock: jobs arrive, steps end, policies decide in between."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from laneway.worker.bench.sim.engine import Batch, Engine
from laneway.worker.bench.sim.jobs import SimJob


class Policy(Protocol):
    """Decides what goes into which engine, and when."""

    def arrive(self, job: SimJob, now: float) -> None:
        """A job was submitted."""

    def stepped(self, engine: Engine, batch: Batch, now: float) -> None:
        """A step of one engine has ended."""


def run(policy: Policy, engines: Sequence[Engine], jobs: Sequence[SimJob], until: float) -> None:
    """Run in virtual time, until nothing is left to do or the clock passes `until` seconds."""
    position = 0
    while True:
        engine = min(engines, key=lambda e: e.end)
        arrival = jobs[position].arrival if position < len(jobs) else math.inf
        now = min(arrival, engine.end)
        if now > until or now == math.inf:
            return
        if arrival <= engine.end:
            policy.arrive(jobs[position], now)
            position += 1
        else:
            policy.stepped(engine, engine.finish(now), now)
        for each in engines:
            each.start(now)

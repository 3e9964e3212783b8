"""Laneway's own admission as a gate: the worker's `Admitter`, without a queue in front of it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from laneway.schemas.keys import Lane
from laneway.worker.admitter import Admitter
from laneway.worker.bench.mixed.policies import Entrant, Hooks, Policy
from laneway.worker.observer import Observer
from laneway.worker.policy.cost import CostModel
from laneway.worker.ports import Claim, Engine
from laneway.worker.settings import WorkerSettings


class Admission:
    """`policy.planner` over all jobs that wait, with the settings of a worker that was told nothing.

    Jobs stay in the engine until they end: none is said to be able to go on from its tokens, so none is preempted.
    """

    def __init__(self, engine: Engine, profile: CostModel | None) -> None:
        self._errors: list[Exception] = []
        observer = Observer()
        observer.start(profile, engine.stats(), engine.info)
        self._admitter = Admitter(
            engine, WorkerSettings(), observer, now_ms=_now_ms, broke=self._errors.append
        )

    @asynccontextmanager
    async def turn(self, entrant: Entrant) -> AsyncIterator[Hooks]:
        """Wait for the planner."""
        job = entrant.prepared.job
        claim = Claim(
            job=job,
            lane=Lane(0, job.slo, job.bucket),
            entry=job.id,
            attempt=1,
            submitted_ms=int(1000 * entrant.due_s),
        )
        async with self._admitter.turn(claim, entrant.prepared) as turn:
            yield Hooks(turn.add)

    def close(self) -> None:
        """Plan no more. Raises what broke the planner, if anything."""
        self._admitter.close()
        if self._errors:
            raise self._errors[0]


def level1(profile: CostModel | None) -> Policy:
    """Admission alone, on the engine's own scheduler."""
    return Policy(name="level1", make=lambda engine: Admission(engine, profile))


def _now_ms() -> int:
    return int(1000 * time.monotonic())

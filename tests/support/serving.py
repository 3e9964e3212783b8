"""A worker that runs in the test's own process, with its engine and what it tells in the test's hands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.support.installations import Installation
from tests.support.wait import wait_until

from laneway.schemas.ids import AdapterId, WorkerId
from laneway.schemas.job import Job
from laneway.schemas.outcome import Result
from laneway.worker.engine.fake_engine import FakeEngine, FakeEngineSettings
from laneway.worker.ports import Adapter, JobQueue
from laneway.worker.service import Service
from laneway.worker.settings import WorkerSettings
from laneway.worker.telemetry import Fact, Telemetry

STEP_S = 0.005
LONG = {"max_tokens": 3000, "ignore_eos": True}
"""Fifteen seconds, if nobody stops it."""
ADAPTERS = {AdapterId(name): Adapter(id=AdapterId(name), path=f"/models/{name}") for name in ("a", "b", "c")}


class Running:
    """A service that runs, with what it told and the engine in a test's hands."""

    def __init__(
        self, service: Service, engine: FakeEngine, facts: list[Fact], task: asyncio.Task[None]
    ) -> None:
        self.service = service
        self.engine = engine
        self.facts = facts
        self.task = task
        self.ends_with: type[Exception] | None = None
        """How it ends, where that is no good end."""

    def told(self, event: str) -> list[Fact]:
        """The facts of that name."""
        return [fact for fact in self.facts if fact.event == event]

    async def says(self, event: str, times: int = 1) -> list[Fact]:
        """The same, once there are so many."""
        await wait_until(lambda: len(self.told(event)) >= times, f"{times} x {event}")
        return self.told(event)

    def assert_idle(self) -> None:
        """Nothing is left: no job in hand, no seat taken, no run in the engine, no adapter lent."""
        stats, ledger = self.engine.stats(), self.service.hands.ledger()
        assert (stats.running, stats.waiting, ledger.latency, ledger.throughput) == (0, 0, 0, 0)
        assert len(self.service.hands) == 0
        assert not self.service.adapters.in_use


@asynccontextmanager
async def serving(
    ends: Installation,
    engine: FakeEngineSettings | None = None,
    queue: JobQueue | None = None,
    **options: Any,
) -> AsyncIterator[Running]:
    """A ready worker; it drains at the end, and must end well."""
    made = FakeEngine(engine or FakeEngineSettings(base_s=STEP_S, answer_tokens=4))
    facts: list[Fact] = []
    service = Service(
        settings=WorkerSettings(engine="fake", **{"lease_s": 3.0, "drain_s": 0.0, **options}),
        queue=queue or await ends.queue(lease_s=3.0),
        engine=made,
        adapters=ADAPTERS,
        worker=WorkerId("a"),
        telemetry=Telemetry(facts.append),
    )
    task = asyncio.create_task(service.run())
    running = Running(service, made, facts, task)
    try:
        await wait_until(lambda: service.ready or task.done(), "a ready worker")
        yield running
    finally:
        service.drain()
        await asyncio.wait([task])
    if running.ends_with is None:
        task.result()
    else:
        assert isinstance(task.exception(), running.ends_with)


async def result_of(ends: Installation, job: Job) -> Result:
    """A job's outcome, once there is one."""
    return await wait_until(lambda: ends.result(job.id), f"a result of {job.id}")

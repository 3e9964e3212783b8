"""Laneway: the whole worker, with an engine that answers at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from laneway.producer import Producer
from laneway.schemas.ids import WorkerId
from laneway.schemas.job import Job
from laneway.worker.bench.queue.peers.protocol import PROMPT, Round, main
from laneway.worker.ports import Adapter, EngineInfo, EngineStats, Piece, Prepared, Progress
from laneway.worker.queue.redis_queue import QueueOptions, RedisQueue
from laneway.worker.service import Service
from laneway.worker.settings import WorkerSettings
from laneway.worker.telemetry import Fact, Telemetry

MODEL = "bench"
_ANSWER = (Piece(text="done", token_ids=(1,), finish_reason="stop"),)


class NoEngine:
    """`Engine` that does nothing: one step, one token, the end."""

    def __init__(self, seats: int) -> None:
        self.info = EngineInfo(
            model=MODEL,
            version="none",
            context_tokens=1 << 16,
            vocabulary=1 << 16,
            seats=seats,
            step_tokens=1 << 16,
            kv_tokens=1 << 24,
        )
        self.died = asyncio.Event()
        self._steps = 0

    async def start(self, progress: Progress) -> EngineInfo:
        """Up at once."""
        return self.info

    async def stop(self) -> None:
        """Nothing to end."""

    async def prepare(self, job: Job) -> Prepared:
        """One token, whatever the prompt."""
        return Prepared(job=job, prompt_token_ids=(1,), max_tokens=1)

    def extend(self, prepared: Prepared, generated: Sequence[int]) -> Prepared:
        """Nothing to add."""
        return prepared

    async def generate(self, run: str, prepared: Prepared, priority: int) -> AsyncIterator[Sequence[Piece]]:
        """The whole answer in the first step."""
        self._steps += 1
        yield _ANSWER

    async def abort(self, run: str) -> None:
        """Nothing runs."""

    async def load_adapter(self, adapter: Adapter) -> None:
        """Every adapter is there."""

    def stats(self) -> EngineStats:
        """Steps only."""
        return EngineStats(steps=self._steps)


async def work(plan: Round) -> None:
    """A worker with as many seats as the batch."""
    settings = WorkerSettings(redis_url=plan.url, model=MODEL, health_port="off", claim_most=plan.batch)
    worker = WorkerId("bench")
    queue = RedisQueue(MODEL, worker, QueueOptions(url=plan.url))

    def listen(fact: Fact) -> None:
        if fact.event == "job.settled":
            plan.settle()
        elif fact.event == "phase.changed" and fact.data["phase"] == "ready":
            plan.ready()

    service = Service(
        settings=settings,
        queue=queue,
        engine=NoEngine(plan.batch),
        adapters={},
        worker=worker,
        telemetry=Telemetry(listen),
    )
    running = asyncio.create_task(service.run())
    await plan.finished.wait()
    service.drain()
    await running


async def produce(plan: Round) -> None:
    """One job per call, or `submit_many` in chunks of the batch."""
    async with Producer(plan.url, chunk=plan.batch, check_model=False) as producer:
        await plan.go()
        if plan.batch == 1:
            for _ in range(plan.jobs):
                await producer.submit(model=MODEL, prompt=PROMPT)
            return
        async for _ in producer.submit_many({"model": MODEL, "prompt": PROMPT} for _ in range(plan.jobs)):
            pass


if __name__ == "__main__":
    main(work, produce)

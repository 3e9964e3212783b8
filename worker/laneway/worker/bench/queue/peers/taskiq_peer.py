"""taskiq on its stream broker, with results in Redis."""

from __future__ import annotations

import asyncio
from typing import Any

from taskiq import TaskiqMiddleware
from taskiq.api import run_receiver_task
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

from laneway.worker.bench.queue.peers.protocol import PROMPT, Round, main


async def nothing(prompt: str) -> str:
    """The job."""
    return "done"


def make_broker(plan: Round) -> tuple[Any, Any]:
    """The broker, reading as many jobs at once as the batch, and the job as it knows it."""
    results: Any = RedisAsyncResultBackend(plan.url, result_ex_time=3600)
    broker = RedisStreamBroker(plan.url, consumer_id="0", xread_count=plan.batch).with_result_backend(results)
    return broker, broker.register_task(nothing, task_name="nothing")


async def work(plan: Round) -> None:
    """taskiq's own receiver with as many jobs at once as the batch."""
    broker, _ = make_broker(plan)

    class Count(TaskiqMiddleware):  # type: ignore[misc] # its base is untyped here
        """Counts results that are stored; the acknowledgement of the last one is not waited for."""

        def post_save(self, message: Any, result: Any) -> None:
            plan.settle()

    broker.add_middlewares(Count())
    await broker.startup()
    plan.ready()
    running = asyncio.create_task(run_receiver_task(broker, max_async_tasks=plan.batch))
    await plan.finished.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def produce(plan: Round) -> None:
    """taskiq has no call for many jobs: a batch is that many calls at once."""
    broker, job = make_broker(plan)
    await broker.startup()
    await plan.go()
    for size in plan.chunks():
        await asyncio.gather(*(job.kiq(PROMPT) for _ in range(size)))
    await broker.shutdown()


if __name__ == "__main__":
    main(work, produce)

"""arq. Its worker looks for jobs every 0.5 s by default, 100 at a time: it is given 1 ms here, or it would do 200 a second."""

from __future__ import annotations

import asyncio
from typing import Any

from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker

from laneway.worker.bench.queue.peers.protocol import PROMPT, Round, main

POLL_S = 0.001


async def nothing(ctx: Any, prompt: str) -> str:
    """The job."""
    return "done"


async def work(plan: Round) -> None:
    """arq's own worker with as many jobs at once as the batch."""

    async def started(ctx: Any) -> None:
        plan.ready()

    async def ended(ctx: Any) -> None:
        plan.settle()

    worker = Worker(
        [nothing],
        redis_settings=RedisSettings.from_dsn(plan.url),
        max_jobs=plan.batch,
        poll_delay=POLL_S,
        on_startup=started,
        after_job_end=ended,
        handle_signals=False,
    )
    running = asyncio.create_task(worker.async_run())
    await plan.finished.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def produce(plan: Round) -> None:
    """arq has no call for many jobs: a batch is that many calls at once."""
    pool = await create_pool(RedisSettings.from_dsn(plan.url))
    await plan.go()
    for size in plan.chunks():
        await asyncio.gather(*(pool.enqueue_job("nothing", PROMPT) for _ in range(size)))
    await pool.aclose()


if __name__ == "__main__":
    main(work, produce)

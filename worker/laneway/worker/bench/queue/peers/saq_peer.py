"""saq, with its defaults."""

from __future__ import annotations

import asyncio
from typing import Any

from saq import Queue, Worker

from laneway.worker.bench.queue.peers.protocol import PROMPT, Round, main


async def nothing(ctx: Any, *, prompt: str) -> str:
    """The job."""
    return "done"


async def work(plan: Round) -> None:
    """saq's own worker with as many jobs at once as the batch."""
    queue = Queue.from_url(plan.url)
    await queue.connect()

    async def started(ctx: Any) -> None:
        plan.ready()

    async def ended(ctx: Any) -> None:
        plan.settle()

    worker = Worker(queue, [nothing], concurrency=plan.batch, startup=started, after_process=ended)
    running = asyncio.create_task(worker.start())
    await plan.finished.wait()
    worker.event.set()
    await asyncio.gather(running, return_exceptions=True)
    await queue.disconnect()


async def produce(plan: Round) -> None:
    """saq has no call for many jobs: a batch is that many calls at once."""
    queue = Queue.from_url(plan.url)
    await queue.connect()
    await plan.go()
    for size in plan.chunks():
        await asyncio.gather(*(queue.enqueue("nothing", prompt=PROMPT) for _ in range(size)))
    await queue.disconnect()


if __name__ == "__main__":
    main(work, produce)

"""What tests ask of a producer, and how they look at what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from tests.support.worker_process import WorkerProcess

from laneway.producer.client import Producer
from laneway.schemas.ids import JobId
from laneway.schemas.outcome import Completed, Result


async def submit(producer: Producer, count: int = 1, tokens: int = 100, **fields: Any) -> list[JobId]:
    sampling = {"max_tokens": tokens, "ignore_eos": True}
    return [
        (await producer.submit(model="demo", prompt=f"job {number}", sampling=sampling, **fields)).id
        for number in range(count)
    ]


async def results(producer: Producer, jobs: Iterable[JobId]) -> list[Result]:
    return await asyncio.gather(*(producer.result(job, 30) for job in jobs))


def settled(worker: WorkerProcess) -> list[str]:
    """Ids of the jobs whose outcome this worker stored."""
    return [line["job_id"] for line in worker.lines() if line.get("event") == "job.settled"]


def assert_completed(found: Iterable[Result], attempt: int) -> None:
    for result in found:
        assert isinstance(result.outcome, Completed)
        assert len(result.outcome.choices[0].token_ids) == result.outcome.usage.output_tokens
        assert result.attempt == attempt

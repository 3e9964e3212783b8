"""Jobs that end as dead letters, made by a worker's hand."""

from __future__ import annotations

from typing import Any, cast

from tests.support.builders import failed
from tests.support.hand import Hand

from laneway.producer import DeadLetter, JobFields, Producer, Submitted
from laneway.schemas.job import Bucket, SloClass
from laneway.schemas.keys import Keys, Lane, lanes
from laneway.worker.policy.admission import ClaimPlan, Stage
from laneway.worker.ports import Unreadable


def fields(**more: Any) -> JobFields:
    """A job for `demo` with a prompt that must not be shown."""
    return cast(JobFields, {"model": "demo", "prompt": "a secret", **more})


async def die(worker: Hand, producer: Producer, code: str = "engine_died", **more: Any) -> Submitted:
    """A job that ends as a dead letter."""
    job = await producer.submit(**fields(**more))
    claim = await worker.claim_one()
    await worker.queue.dead_letter(claim, failed(claim.job.id, code))
    return job


async def bury(worker: Hand, server: Any, namespace: str, **entry: str) -> None:
    """An entry that is no job, found by a worker."""
    lane = Lane(0, SloClass.LATENCY, Bucket.SHORT)
    await server.xadd(Keys(namespace).of_model("demo", 0).lane(lane), entry)
    for found in await worker.queue.claim(ClaimPlan(10, (Stage(lanes(0), 10),))):
        assert isinstance(found, Unreadable)
        await worker.queue.bury(found)


async def letters(producer: Producer, **chosen: Any) -> list[DeadLetter]:
    """All dead letters, or those chosen."""
    return [letter async for letter in producer.dead_letters(**chosen)]

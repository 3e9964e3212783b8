"""A worker without an engine: the test claims, speaks and settles in its place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace

from laneway.schemas.cards import ModelCard
from laneway.schemas.events import Ended, Event, Tokens
from laneway.schemas.ids import new_worker_id
from laneway.schemas.keys import lanes
from laneway.schemas.outcome import Choice, Completed, Result, Usage
from laneway.schemas.record import Kept
from laneway.worker.policy.admission import ClaimPlan, Stage
from laneway.worker.ports import Addition, Claim, Settlement
from laneway.worker.queue.redis_queue import QueueOptions, RedisQueue


class Hand:
    """One worker's side of the queue, moved step by step."""

    def __init__(self, queue: RedisQueue, partitions: int) -> None:
        self.queue = queue
        self._partitions = partitions

    async def claim(self, most: int = 1000) -> list[Claim]:
        """Take what waits, from every partition."""
        claims: list[Claim] = []
        for partition in range(self._partitions):
            plan = ClaimPlan(most, (Stage(lanes(partition), most),))
            claims += [claim for claim in await self.queue.claim(plan) if isinstance(claim, Claim)]
        return claims

    async def claim_one(self) -> Claim:
        """The one job that waits."""
        claims = await self.claim()
        assert len(claims) == 1, f"{len(claims)} jobs were waiting"
        return claims[0]

    def also(self, claim: Claim, output: str) -> Claim:
        """The claim, publishing to one more output."""
        return replace(claim, outputs=(*claim.outputs, output))

    async def say(self, claim: Claim, *pieces: str, first: int = 0) -> None:
        """Publish one token event for each of `pieces`, the first one numbered `first`."""
        for seq, text in enumerate(pieces, start=first):
            event = Tokens(job_id=claim.job.id, attempt=claim.attempt, seq=seq, text=text)
            await self.publish(claim, event)

    async def keep(self, claim: Claim, *pieces: str) -> None:
        """Keep one token event for each of `pieces`, from the first of the answer on."""
        events = [Kept(attempt=claim.attempt, text=text, token_ids=(len(text),)) for text in pieces]
        assert await self.queue.keep([Addition(claim, 0, events)]) == [len(pieces)]

    async def publish(self, claim: Claim, *events: Event) -> None:
        """Publish events to all of the job's outputs."""
        await self.queue.publish(dict.fromkeys(claim.outputs, events))

    async def finish(self, claim: Claim, text: str = "done", *, tell: bool = True) -> None:
        """Complete the job, and say so unless told not to."""
        outcome = Completed(choices=(Choice(text=text, finish_reason="stop"),), usage=Usage(output_tokens=1))
        result = Result(
            job_id=claim.job.id, outcome=outcome, attempt=claim.attempt, metadata=claim.job.metadata
        )
        assert await self.queue.settle(claim, result) is Settlement.STORED
        if tell:
            await self.publish(claim, Ended(job_id=claim.job.id, attempt=claim.attempt, state="completed"))

    async def finish_all(self, claims: Sequence[Claim]) -> None:
        """Complete each job with its own id as the answer."""
        await asyncio.gather(*(self.finish(claim, claim.job.id) for claim in claims))


@asynccontextmanager
async def hand(url: str, namespace: str, model: str = "demo", **card: Any) -> AsyncIterator[Hand]:
    """A worker's hand on the queue of `model`, registered with `card`."""
    made = ModelCard(name=model, **card)
    options = QueueOptions(url=url, namespace=namespace, partitions=made.partitions)
    queue = RedisQueue(model, new_worker_id("hand"), options)
    await queue.open(made)
    try:
        yield Hand(queue, made.partitions)
    finally:
        await queue.close()

"""Steps that tests of the queue share."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from tests.support.builders import completed
from tests.support.installations import RedisInstallation
from tests.support.wait import wait_until

from laneway.worker.errors import QueueUnavailable
from laneway.worker.ports import Claim, JobQueue, Settlement


async def reclaimed(queue: JobQueue) -> int:
    """How many lapsed jobs were offered again, once there are any."""
    return await wait_until(queue.reclaim, "a lapsed lease")


async def settle_all(queue: JobQueue, claims: list[Claim]) -> set[Settlement]:
    return set(
        await asyncio.gather(
            *(queue.settle(claim, completed(claim.job.id, attempt=claim.attempt)) for claim in claims)
        )
    )


async def blocked(both_ends: RedisInstallation, clients: int) -> None:
    """Return once so many clients wait in a blocking read."""

    async def enough() -> bool:
        return bool((await both_ends.client.info("clients"))["blocked_clients"] >= clients)

    await wait_until(enough)


def until_answered(call: Any) -> Any:
    """`call`, made into a condition: None while the server is unavailable."""

    async def answer() -> Any:
        with suppress(QueueUnavailable):
            return await call()

    return answer

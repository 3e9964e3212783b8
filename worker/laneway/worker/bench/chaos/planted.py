"""Workers with a bug planted in them, so that the audit can be seen to find it.

`python -m laneway.worker.bench.chaos.planted BUG OPTION...` runs one; the product itself has no switch for this.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Sequence

from laneway.schemas import wire
from laneway.schemas.ids import JobId
from laneway.schemas.keys import GROUP
from laneway.schemas.outcome import Result
from laneway.worker import app, lease
from laneway.worker.ports import Addition, Claim, Settlement
from laneway.worker.queue.redis_queue import RedisQueue

RESULT_LATE_S = 1.0
"""How long after its removal from the lane a job's result is stored."""
RESULT_TTL_MS = 3_600_000


class AcknowledgeBeforeResult(RedisQueue):
    """The job leaves its lane first, and its result is stored a moment later."""

    async def settle(self, claim: Claim, result: Result) -> Settlement:
        await self._acknowledge(claim)
        return await super().settle(claim, result)

    async def dead_letter(self, claim: Claim, result: Result) -> Settlement:
        await self._acknowledge(claim)
        return await super().dead_letter(claim, result)

    async def _acknowledge(self, claim: Claim) -> None:
        await remove(self, claim)
        await asyncio.sleep(RESULT_LATE_S)


class RenewWithoutOwnerCheck(RedisQueue):
    """Renewal takes entries back, and what else would tell whose a job is keeps silent: whoever comes may settle it."""

    async def renew(self, claims: Sequence[Claim]) -> list[JobId]:
        for claim in claims:
            lane = self._part(claim.lane).lane(claim.lane)
            await self._ask("XCLAIM", lane, GROUP, self._worker, 0, claim.entry, "JUSTID")
        return []

    async def keep(self, additions: Sequence[Addition]) -> list[int]:
        return [addition.first + len(addition.events) for addition in additions]

    async def settle(self, claim: Claim, result: Result) -> Settlement:
        place = self._part(claim.lane).result(claim.job.id)
        await self._ask("SET", place, wire.encode(result), "PX", RESULT_TTL_MS)
        await remove(self, claim)
        return Settlement.STORED


async def remove(queue: RedisQueue, claim: Claim) -> None:
    """Take the job out of its lane."""
    lane = queue._part(claim.lane).lane(claim.lane)  # noqa: SLF001 - the bug sits where the product's code does
    await queue._ask("XACK", lane, GROUP, claim.entry)  # noqa: SLF001
    await queue._ask("XDEL", lane, claim.entry)  # noqa: SLF001


def run(bug: str, options: Sequence[str]) -> int:
    """Run a worker with that bug; the exit code."""
    app.RedisQueue = BUGS[bug]  # type: ignore[attr-defined]
    if bug == "blind-renewal":
        lease.FENCE = (
            math.inf
        )  # the worker's own clock would hide the bug: it drops what it could not renew in time
    return app.main(options)


BUGS: dict[str, type[RedisQueue]] = {
    "ack-first": AcknowledgeBeforeResult,
    "blind-renewal": RenewWithoutOwnerCheck,
}

if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2:]))

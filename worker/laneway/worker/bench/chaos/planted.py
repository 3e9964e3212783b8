"""Workers with a bug planted in them, so that the audit can be seen to find it.

`python -m laneway.worker.bench.chaos.planted BUG OPTION...` runs one; the product itself has no switch for this.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import sys

from laneway.schemas.keys import GROUP
from laneway.schemas.outcome import Result
from laneway.worker import app, lease
from laneway.worker.ports import Claim, Settlement
from laneway.worker.queue import redis_queue
from laneway.worker.queue.connection import Script
from laneway.worker.queue.redis_queue import RedisQueue

RESULT_LATE_S = 0.3
"""How long after its removal from the lane a job's result is stored."""

_BLIND_RENEWAL = """
-- Claims whatever it is asked to, whoever owns it, and finds nothing lost.
local claim = {'XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0}
for i = 4, #ARGV, 3 do claim[#claim + 1] = ARGV[i] end
claim[#claim + 1] = 'JUSTID'
redis.call(unpack(claim))
return {}
"""
_BLIND_SETTLE = """
-- Whoever comes may store an outcome, as long as the renewal did not say otherwise.
redis.call('SET', KEYS[3], ARGV[4], 'PX', ARGV[5])
redis.pcall('XACK', KEYS[1], ARGV[1], ARGV[2])
redis.call('XDEL', KEYS[1], ARGV[2])
return 'STORED'
"""


def acknowledge_before_result() -> None:
    """The job leaves its lane first, and its result is stored a moment later."""
    store = RedisQueue._settle  # noqa: SLF001 - the bug sits where the product's code does

    async def settle(queue: RedisQueue, claim: Claim, result: Result, letter: bytes, code: str) -> Settlement:
        lane = queue._part(claim.lane).lane(claim.lane)  # noqa: SLF001
        await queue._ask("XACK", lane, GROUP, claim.entry)  # noqa: SLF001
        await queue._ask("XDEL", lane, claim.entry)  # noqa: SLF001
        await asyncio.sleep(RESULT_LATE_S)
        return await store(queue, claim, result, letter, code)

    RedisQueue._settle = settle  # type: ignore[assignment, method-assign]  # noqa: SLF001


def renew_without_owner_check() -> None:
    """Renewal takes entries back, where the worker trusts renewal alone.

    The worker's own clock and the fence at settling would each hide the bug, so they are taken away with it.
    """
    _replace(redis_queue._RENEW, _BLIND_RENEWAL)  # noqa: SLF001
    _replace(redis_queue._SETTLE, _BLIND_SETTLE)  # noqa: SLF001
    lease.FENCE = math.inf


def _replace(script: Script, source: str) -> None:
    script.source = source
    script.sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()


BUGS = {"ack-first": acknowledge_before_result, "blind-renewal": renew_without_owner_check}

if __name__ == "__main__":
    BUGS[sys.argv[1]]()
    sys.exit(app.main(sys.argv[2:]))

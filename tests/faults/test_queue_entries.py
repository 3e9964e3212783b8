"""What the queue on Redis does with entries that are no jobs, and with too many jobs."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.builders import make_job
from tests.support.installations import RedisInstallation, plan, take
from tests.support.steps import settle_all

from laneway.schemas import wire
from laneway.schemas.job import Bucket, SloClass
from laneway.schemas.keys import Lane
from laneway.schemas.outcome import Failed, JobError
from laneway.worker.ports import Claim, Settlement, Unreadable
from laneway.worker.queue.redis_queue import RedisQueue

pytestmark = [pytest.mark.redis, pytest.mark.unfinished]

LATENCY = Lane(0, SloClass.LATENCY, Bucket.SHORT)
ERROR = JobError(code="engine_died", message="the engine died")


# --- strange entries ----------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"a": "b"},
        {"j": "x" * 100_000},
        {"j": b"\xff\xfe"},
        {"j": ""},
        {"j": "not-an-id", "t": "yesterday", "d": b"\x80"},
        {"d": wire.encode_job(make_job())},
        {"j": "other", "d": wire.encode_job(make_job())},
        {str(number): "x" for number in range(100)},
    ],
    ids=["no-job", "long-id", "binary-id", "empty-id", "no-time", "no-id", "another-job", "many-fields"],
)
@pytest.mark.case("D53")
async def test_entries_by_hand_are_buried(both_ends: RedisInstallation, fields: dict[Any, Any]) -> None:
    """Whatever somebody puts into a lane by hand, the worker lives and the next job runs."""
    queue, job = await both_ends.queue(), make_job()
    await both_ends.client.xadd(both_ends.part().lane(LATENCY), fields)
    await both_ends.submit(job)
    bad, good = await queue.claim(plan())
    assert isinstance(bad, Unreadable)
    assert isinstance(good, Claim)
    await queue.bury(bad)
    assert len(await both_ends.dead()) == 1
    assert sum(map(len, (await both_ends.pending()).values())) == 1


async def test_a_job_whose_body_has_vanished_fails(both_ends: RedisInstallation) -> None:
    """Its consumer is told, instead of waiting for ever."""
    queue, job = await both_ends.queue(), make_job(prompt="x" * 100_000, reply_to="out")
    await both_ends.submit(job)
    await both_ends.client.delete(both_ends.part().body(job.id))
    (bad,) = await queue.claim(plan())
    assert isinstance(bad, Unreadable)
    assert (bad.job_id, bad.outputs) == (job.id, ("out",))
    await queue.bury(bad)
    result = await both_ends.result(job.id)
    assert result is not None
    assert isinstance(result.outcome, Failed)


async def test_a_job_of_a_later_format_is_not_guessed_at(both_ends: RedisInstallation) -> None:
    """It is put aside whole, for a newer worker to replay."""
    queue: RedisQueue = await both_ends.queue()
    job = make_job()
    data = bytearray(wire.encode_job(job))
    data[1] = 99  # the version, first in the envelope
    await both_ends.put(LATENCY, bytes(data), job.id)
    (bad,) = await queue.claim(plan())
    assert isinstance(bad, Unreadable)
    assert "format 99" in bad.reason
    await queue.bury(bad)
    assert [letter["data"] for letter in await both_ends.dead()] == [bytes(data)]


# --- bounds -------------------------------------------------------------------


@pytest.mark.case("A18")
async def test_lanes_are_bounded_in_jobs_and_in_tokens(both_ends: RedisInstallation) -> None:
    """A lane at its bound refuses, changes nothing, and accepts again when jobs have ended."""
    queue = await both_ends.queue()
    assert (await both_ends.submit_one(make_job(), most=1))[0] == b"NEW"
    assert (await both_ends.submit_one(make_job(), most=1))[0] == b"FULL"
    assert (await both_ends.submit_one(make_job(), most_tokens=1000, tokens=5000))[0] == b"FULL"
    assert await settle_all(queue, await take(queue)) == {Settlement.STORED}
    assert (await both_ends.submit_one(make_job(), most_tokens=1000, tokens=5000))[0] == b"NEW"
    assert (await both_ends.submit_one(make_job(), most_tokens=1000, tokens=1))[0] == b"FULL"
    assert await settle_all(queue, await take(queue)) == {Settlement.STORED}
    assert (await both_ends.submit_one(make_job(), most_tokens=1000, tokens=900))[0] == b"NEW"
    assert (await both_ends.submit_one(make_job(), most_tokens=1000, tokens=100))[0] == b"NEW"
    assert await settle_all(queue, await take(queue)) == {Settlement.STORED}
    assert await both_ends.client.hgetall(both_ends.part().load) == {b"latency:short": b"0"}

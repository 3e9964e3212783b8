"""What the queue on Redis does when replies get lost or leases lapse. Cases that only a real server can show."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress

import pytest
import redis.asyncio
from redis.asyncio.connection import AbstractConnection
from tests.support.builders import completed, make_job
from tests.support.installations import SHORT_LEASE_S, RedisInstallation, take
from tests.support.proxy import Proxy
from tests.support.steps import blocked, until_answered
from tests.support.wait import wait_until

from laneway.schemas.job import Bucket, SloClass
from laneway.schemas.keys import GROUP, Lane
from laneway.schemas.outcome import JobError
from laneway.worker.errors import QueueUnavailable
from laneway.worker.ports import Claim, Settlement
from laneway.worker.queue import connection
from laneway.worker.queue.admin import server_facts

pytestmark = [pytest.mark.redis, pytest.mark.unfinished]

LATENCY = Lane(0, SloClass.LATENCY, Bucket.SHORT)
ERROR = JobError(code="engine_died", message="the engine died")


# --- lost replies -------------------------------------------------------------


async def test_a_submit_whose_reply_is_lost_can_be_repeated(
    both_ends: RedisInstallation, proxy: Proxy
) -> None:
    """The same job id twice is one entry."""
    job = make_job(idempotency_key="once")
    async with redis.asyncio.Redis.from_url(proxy.url, protocol=2, retry=None) as client:
        both_ends.client, real = client, both_ends.client
        await client.ping()
        proxy.drop_reply(lambda request: job.id.encode() in request)
        with pytest.raises(redis.exceptions.ConnectionError):
            await both_ends.submit(job)
        reply = await both_ends.submit_one(job)
        both_ends.client = real
    assert proxy.dropped == 1
    assert reply[:2] == [b"NEW", job.id.encode()]
    assert len(await take(await both_ends.queue())) == 1


@pytest.mark.parametrize("new", [False, True], ids=["of the pool", "that is being made"])
async def test_a_connection_cut_before_it_is_written_to_is_an_outage_and_no_defect(
    both_ends: RedisInstallation, monkeypatch: pytest.MonkeyPatch, new: bool
) -> None:
    """uvloop says RuntimeError then, where asyncio says ConnectionError. The next call has a connection of its own."""
    queue = await both_ends.queue()
    await both_ends.submit(make_job())
    if new:
        await queue.close()

    async def cut(*_: object, **__: object) -> None:
        raise RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")

    with monkeypatch.context() as patch:
        patch.setattr(AbstractConnection, "send_packed_command", cut)
        with pytest.raises(QueueUnavailable):
            await take(queue)
        with pytest.raises(QueueUnavailable):
            await server_facts(both_ends.url)
    assert len(await take(queue)) == 1


@pytest.mark.case("A15")
async def test_jobs_whose_delivery_was_lost_come_back(both_ends: RedisInstallation, proxy: Proxy) -> None:
    """Redis had delivered them, the worker never saw them: after a lease they are offered again, also to itself."""
    queue = await both_ends.queue("a", lease_s=SHORT_LEASE_S, url=proxy.url)
    await both_ends.submit(make_job(), make_job())
    proxy.drop_reply(lambda request: b"EVALSHA" in request)
    with pytest.raises(QueueUnavailable):
        await take(queue)
    assert sum(map(len, (await both_ends.pending()).values())) == 2
    await wait_until(queue.reclaim)
    assert len(await take(queue)) == 2


async def test_a_settlement_whose_reply_is_lost_is_recognised(
    both_ends: RedisInstallation, proxy: Proxy
) -> None:
    """Asked again, the server says that this very attempt has stored it."""
    queue, job = await both_ends.queue(url=proxy.url), make_job()
    await both_ends.submit(job)
    (claim,) = await take(queue)
    proxy.drop_reply(lambda request: b"EVALSHA" in request)
    with pytest.raises(QueueUnavailable):
        await queue.settle(claim, completed(job.id))
    assert await queue.settle(claim, completed(job.id)) is Settlement.REPEATED


async def test_a_retry_whose_reply_is_lost_counts_once(both_ends: RedisInstallation, proxy: Proxy) -> None:
    """Repeating it changes nothing."""
    queue, job = await both_ends.queue(url=proxy.url), make_job()
    await both_ends.submit(job)
    (claim,) = await take(queue)
    proxy.drop_reply(lambda request: b"EVALSHA" in request)
    with pytest.raises(QueueUnavailable):
        await queue.retry(claim, ERROR, 0)
    await queue.retry(claim, ERROR, 0)
    (again,) = await wait_until(lambda: take(queue))
    assert (again.attempt, again.failures) == (2, 1)


@pytest.mark.case("A13")
async def test_nobody_gets_an_answer_meant_for_another(both_ends: RedisInstallation) -> None:
    """Calls that are cancelled at any moment leave no reply behind for the next caller."""
    queue = await both_ends.queue()
    await both_ends.submit(*(make_job() for _ in range(200)))
    chance, claims = random.Random(7), await take(queue, 200)

    async def settle(claim: Claim) -> None:
        result = completed(claim.job.id, claim.job.id)
        call = asyncio.create_task(queue.settle(claim, result))
        for _ in range(chance.randrange(6)):
            await asyncio.sleep(0)
        if chance.random() < 0.5:
            call.cancel()
        with suppress(asyncio.CancelledError):
            assert await call is Settlement.STORED
        await queue.settle(claim, result)  # a call that was cancelled before it began has sent nothing
        assert await queue.renew([claim]) == [claim.job.id]

    await asyncio.gather(*(settle(claim) for claim in claims))
    for claim in claims:
        result = await both_ends.result(claim.job.id)
        assert result is not None
        assert result.text == claim.job.id


async def test_a_half_open_link_is_noticed(
    both_ends: RedisInstallation, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that accepts everything and says nothing is unavailable, and usable again once it speaks."""
    monkeypatch.setattr(connection, "REPLY_S", 0.3)
    queue = await both_ends.queue(url=proxy.url)
    await both_ends.submit(make_job())
    proxy.stall()
    begin = time.monotonic()
    with pytest.raises(QueueUnavailable, match="TimeoutError"):
        await take(queue)
    assert time.monotonic() - begin < 2
    proxy.flow()
    await wait_until(until_answered(queue.depths))


@pytest.mark.case("A14")
async def test_an_empty_queue_is_waited_on_longer_than_for_any_reply(
    both_ends: RedisInstallation, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read that blocks is no outage, however short the time for replies: the connection stays, and a job ends it."""
    monkeypatch.setattr(connection, "REPLY_S", 0.3)
    queue = await both_ends.queue(url=proxy.url)
    await asyncio.gather(queue.wait(1.0), queue.controls(1.0))
    made = proxy.accepted
    await asyncio.gather(queue.wait(1.0), queue.controls(1.0))
    waiting = asyncio.create_task(queue.wait(1.0))
    await blocked(both_ends, 1)
    await both_ends.submit(make_job())
    await waiting
    assert proxy.accepted == made
    assert len(await take(queue)) == 1


# --- leases -------------------------------------------------------------------


async def test_renewals_are_no_deliveries(both_ends: RedisInstallation) -> None:
    """The delivery count stays what it is, however often a lease is renewed."""
    queue = await both_ends.queue()
    await both_ends.submit(make_job())
    claims = await take(queue)
    for _ in range(5):
        await queue.renew(claims)
    assert [count for _, count in (await both_ends.pending())["a"]] == [1]


async def test_fresh_leases_do_not_hide_lapsed_ones(both_ends: RedisInstallation) -> None:
    """10,000 entries in living hands in front of ten lapsed ones: those are found, and no call is slow."""
    queue = await both_ends.queue("b", lease_s=60.0)
    lane = both_ends.part().lane(LATENCY)
    async with both_ends.client.pipeline(transaction=False) as pipe:
        for _ in range(10_010):
            pipe.xadd(lane, {"j": "x"})
        entries = await pipe.execute()
        pipe.xreadgroup(GROUP, "a", {lane: ">"}, count=10_010)
        pipe.xclaim(lane, GROUP, "a", 0, entries[10_000:], idle=120_000, justid=True)
        await pipe.execute()
    begin = time.monotonic()
    assert await queue.reclaim() == 10
    assert time.monotonic() - begin < 0.5
    assert [entry for entry, _ in (await both_ends.pending())["returned"]] == [
        e.decode() for e in entries[-10:]
    ]


async def test_many_lapsed_leases_are_found_in_small_steps(both_ends: RedisInstallation) -> None:
    """All 1,500 jobs of a dead worker are offered again at once, and no step holds the server up."""
    queue = await both_ends.queue("b", lease_s=60.0)
    lane = both_ends.part().lane(LATENCY)
    async with both_ends.client.pipeline(transaction=False) as pipe:
        for _ in range(1500):
            pipe.xadd(lane, {"j": "x"})
        entries = await pipe.execute()
        await both_ends.client.xreadgroup(GROUP, "a", {lane: ">"}, count=1500)
        await both_ends.client.xclaim(lane, GROUP, "a", 0, entries, idle=120_000, justid=True)
    calls = (await both_ends.client.info("commandstats"))["cmdstat_evalsha"]["calls"]
    assert await queue.reclaim() == 1500
    steps = (await both_ends.client.info("commandstats"))["cmdstat_evalsha"]["calls"] - calls
    assert steps >= 1500 / 128
    assert await queue.reclaim() == 0


@pytest.mark.case("A3")
async def test_a_missing_lane_stops_no_reclaim(both_ends: RedisInstallation) -> None:
    """The jobs of all other lanes are offered again all the same."""
    queue = await both_ends.queue("a", lease_s=SHORT_LEASE_S)
    await both_ends.submit(make_job(slo="throughput"))
    await take(queue)
    await both_ends.client.delete(both_ends.part().lane(LATENCY))
    await wait_until(queue.reclaim)
    assert len(await take(queue)) == 1


@pytest.mark.case("A2")
async def test_two_workers_reclaim_a_job_once(both_ends: RedisInstallation) -> None:
    """There is no lock; moving the entry decides."""
    queues = [await both_ends.queue(name, lease_s=SHORT_LEASE_S) for name in "abcdefgh"]
    await both_ends.submit(*(make_job() for _ in range(20)))
    for claim in await take(queues[0]):
        await queues[0].start(claim)

    async def all_at_once() -> int:
        return sum(await asyncio.gather(*(queue.reclaim() for queue in queues)))

    assert await wait_until(all_at_once) == 20
    assert sorted({claim.losses for claim in await take(queues[1])}) == [1]


@pytest.mark.case("A9")
async def test_consumers_that_are_gone_are_forgotten_but_never_their_jobs(
    both_ends: RedisInstallation,
) -> None:
    """Removing a consumer drops its pending entries: only empty ones go."""
    busy, gone = await both_ends.queue("busy"), await both_ends.queue("gone")
    await both_ends.submit(make_job())
    assert len(await take(busy)) == 1
    assert await take(gone) == []
    lane = both_ends.part().lane(LATENCY)
    await both_ends.client.xgroup_createconsumer(lane, GROUP, "gone")

    async def left() -> bool:
        await gone.sweep(idle_ms=1)
        consumers = await both_ends.client.xinfo_consumers(lane, GROUP)
        return [consumer["name"] for consumer in consumers] == [b"busy"]

    await wait_until(left)
    assert len((await both_ends.pending())["busy"]) == 1

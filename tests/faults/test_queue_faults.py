"""What the queue on Redis does when the server or the way to it fails. Cases that only a real server can show."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
import redis.asyncio
from tests.conftest import StartServer
from tests.support.builders import completed, make_job
from tests.support.installations import SHORT_LEASE_S, RedisInstallation, plan, take
from tests.support.proxy import Proxy
from tests.support.wait import wait_until

from laneway.schemas import wire
from laneway.schemas.job import Bucket, SloClass
from laneway.schemas.keys import GROUP, HELD, Lane
from laneway.schemas.outcome import Failed, JobError
from laneway.worker.errors import QueueUnavailable, QueueUnfit
from laneway.worker.ports import Claim, JobQueue, Settlement, Unreadable
from laneway.worker.queue import connection
from laneway.worker.queue.redis_queue import RedisQueue

pytestmark = [pytest.mark.redis, pytest.mark.unfinished]

LATENCY = Lane(0, SloClass.LATENCY, Bucket.SHORT)
ERROR = JobError(code="engine_died", message="the engine died")


@pytest.fixture
async def both_ends(each_redis_url: str, namespace: str) -> AsyncIterator[RedisInstallation]:
    """A fresh queue on each of the servers."""
    made = RedisInstallation(each_redis_url, namespace)
    yield made
    await made.close()


@pytest.fixture
async def own(start_server: StartServer) -> AsyncIterator[RedisInstallation]:
    """A queue on a server that nobody else uses: it may be flushed, killed and filled."""
    made = RedisInstallation(start_server().url, "own")
    yield made
    await made.close()


@pytest.fixture
async def proxy(both_ends: RedisInstallation) -> AsyncIterator[Proxy]:
    """A proxy in front of the server."""
    async with Proxy(int(both_ends.url.split(":")[2].split("/")[0])) as proxy:
        yield proxy


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


async def test_a_missing_lane_stops_no_reclaim(both_ends: RedisInstallation) -> None:
    """The jobs of all other lanes are offered again all the same."""
    queue = await both_ends.queue("a", lease_s=SHORT_LEASE_S)
    await both_ends.submit(make_job(slo="throughput"))
    await take(queue)
    await both_ends.client.delete(both_ends.part().lane(LATENCY))
    await wait_until(queue.reclaim)
    assert len(await take(queue)) == 1


async def test_two_workers_reclaim_a_job_once(both_ends: RedisInstallation) -> None:
    """There is no lock; moving the entry decides."""
    queues = [await both_ends.queue(name, lease_s=SHORT_LEASE_S) for name in "abcdefgh"]
    await both_ends.submit(*(make_job() for _ in range(20)))
    await take(queues[0])

    async def all_at_once() -> int:
        return sum(await asyncio.gather(*(queue.reclaim() for queue in queues)))

    assert await wait_until(all_at_once) == 20
    assert sorted({claim.losses for claim in await take(queues[1])}) == [1]


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


# --- a server that loses things -----------------------------------------------


async def test_scripts_are_loaded_again(own: RedisInstallation) -> None:
    """A server that has forgotten its scripts is no failure."""
    queue = await own.queue()
    await own.submit(make_job())
    await own.client.script_flush()
    claims = await take(queue)
    await own.client.script_flush()
    assert await settle_all(queue, claims) == {Settlement.STORED}


async def test_after_a_flush_jobs_in_hand_are_settled_and_new_ones_run(own: RedisInstallation) -> None:
    """Results are stored although nothing of the job is left, and lanes come back by themselves."""
    queue = await own.queue()
    await own.submit(*(make_job() for _ in range(3)))
    claims = await take(queue)
    await own.client.flushall()
    assert await queue.renew(claims) == []
    assert await settle_all(queue, claims) == {Settlement.STORED}
    assert await settle_all(queue, claims) <= {Settlement.REPEATED, Settlement.FENCED}
    await own.submit(make_job())
    assert len(await wait_until(lambda: take(queue))) == 1
    assert await queue.reclaim() == 0
    assert len(await queue.depths()) == 6


async def test_a_deleted_lane_is_made_anew_at_its_beginning(own: RedisInstallation) -> None:
    """A job submitted between the loss and the mending is not skipped."""
    queue = await own.queue()
    await own.client.delete(own.part().lane(LATENCY))
    job = make_job()
    await own.submit(job)
    assert [claim.job.id for claim in await wait_until(lambda: take(queue))] == [job.id]


async def test_a_lost_group_gives_unfinished_jobs_and_no_finished_ones(own: RedisInstallation) -> None:
    """What has a result is dropped on the way, however much of it is in front."""
    queue = await own.queue()
    lane = own.part().lane(LATENCY)
    done = [make_job() for _ in range(100)]
    for job in done:
        await own.client.xadd(lane, {"j": job.id, "t": 1, "d": wire.encode_job(job)})
        await own.client.set(own.part().result(job.id), wire.encode(completed(job.id)), px=60_000)
    job = make_job()
    await own.submit(job)
    await own.client.xgroup_destroy(lane, GROUP)
    assert [claim.job.id for claim in await wait_until(lambda: take(queue))] == [job.id]
    assert await own.client.xlen(lane) == 1


async def test_mending_is_no_hot_loop(own: RedisInstallation) -> None:
    """However many callers find a lane missing, groups are made a few times a second at most."""
    queue = await own.queue()
    for _ in range(3):
        await own.client.delete(own.part().lane(LATENCY))
        await asyncio.gather(*(take(queue, 1) for _ in range(20)))
    stats = await own.client.info("commandstats")
    assert stats["cmdstat_xgroup|create"]["calls"] <= 6 + 3 * 6


async def test_a_killed_server_comes_back_with_every_job(start_server: StartServer) -> None:
    """SIGKILL and a restart from the append-only file: leases and results are still there."""
    server = start_server("--appendfsync", "always")
    both_ends = RedisInstallation(server.url, "own")
    queue = await both_ends.queue()
    jobs = [make_job() for _ in range(10)]
    await both_ends.submit(*jobs)
    claims = await take(queue, 6)
    assert await settle_all(queue, claims[:3]) == {Settlement.STORED}
    server.kill()
    with pytest.raises(QueueUnavailable):
        await queue.renew(claims[3:])
    with pytest.raises(QueueUnavailable):
        await queue.wait(0.1)
    server.start()
    assert await wait_until(until_answered(lambda: queue.depths()))
    await both_ends.client.connection_pool.disconnect()
    assert await queue.renew(claims[3:]) == []
    rest = await take(queue)
    assert await settle_all(queue, claims[3:] + rest) == {Settlement.STORED}
    assert all([await both_ends.result(job.id) for job in jobs])
    await both_ends.close()


async def test_an_outage_ends_no_wait_for_good(start_server: StartServer) -> None:
    """Blocking reads that were cut work again on the next call."""
    server = start_server()
    both_ends = RedisInstallation(server.url, "own")
    queue = await both_ends.queue()
    waits = [asyncio.create_task(queue.wait(1.0)), asyncio.create_task(queue.controls(1.0))]
    await blocked(both_ends, 2)
    server.kill()
    ended = await asyncio.gather(*waits, return_exceptions=True)
    assert all(isinstance(error, QueueUnavailable) for error in ended)
    server.start()
    await wait_until(until_answered(queue.depths))
    assert await queue.controls(0.01) == []
    await queue.wait(0.01)
    await both_ends.close()


async def test_a_demoted_server_is_unavailable_and_usable_again(own: RedisInstallation) -> None:
    """During a failover nothing is acknowledged that was not stored."""
    queue = await own.queue()
    await own.submit(make_job())
    claims = await take(queue)
    await own.client.config_set("replica-serve-stale-data", "no")
    await own.client.replicaof("127.0.0.1", "1")
    with pytest.raises(QueueUnavailable):
        await queue.settle(claims[0], completed(claims[0].job.id))
    with pytest.raises(QueueUnavailable):
        await take(queue)
    await own.client.replicaof("NO", "ONE")
    assert await settle_all(queue, claims) == {Settlement.STORED}


async def test_a_demotion_ends_blocking_reads_and_they_work_again(own: RedisInstallation) -> None:
    """The server unblocks them with an error; nothing hangs and nothing is lost."""
    queue = await own.queue()
    waiting = asyncio.create_task(queue.wait(1.0))
    await blocked(own, 1)
    await own.client.replicaof("127.0.0.1", "1")
    with pytest.raises(QueueUnavailable, match="UNBLOCKED"):
        await waiting
    await own.client.replicaof("NO", "ONE")
    await queue.wait(0.01)
    await own.submit(make_job())
    assert len(await take(queue)) == 1


# --- a full server ------------------------------------------------------------


async def test_jobs_are_refused_well_before_memory_is_full(start_server: StartServer) -> None:
    """At 60% of maxmemory; an earlier idempotency key is still answered."""
    both_ends = RedisInstallation(
        start_server("--maxmemory", "20mb", "--maxmemory-policy", "noeviction").url, "own"
    )
    first = make_job(idempotency_key="first")
    assert (await both_ends.submit_one(first))[0] == b"NEW"
    for number in range(13):
        await both_ends.client.set(f"filler-{number}", b"x" * 1_000_000)

    async def refused() -> bool:
        return bool((await both_ends.submit_one(make_job()))[0] == b"MEMORY")

    await wait_until(refused)
    assert (await both_ends.submit_one(make_job(idempotency_key="first")))[:2] == [
        b"KNOWN",
        first.id.encode(),
    ]
    await both_ends.client.delete(*(f"filler-{number}" for number in range(13)))

    async def accepted() -> bool:
        return not await refused()

    await wait_until(accepted)
    await both_ends.close()


async def test_at_full_memory_nothing_is_delivered_or_acknowledged(start_server: StartServer) -> None:
    """A result that cannot be stored leaves its job in hand; no other job is taken; later both go on."""
    server = start_server("--maxmemory", "20mb", "--maxmemory-policy", "noeviction")
    both_ends = RedisInstallation(server.url, "own")
    queue = await both_ends.queue()
    await both_ends.submit(*(make_job() for _ in range(4)))
    claims = await take(queue, 3)
    await both_ends.client.config_set("maxmemory", "1mb")
    with pytest.raises(QueueUnavailable, match="maxmemory"):
        await queue.settle(claims[0], completed(claims[0].job.id))
    with pytest.raises(QueueUnavailable, match="maxmemory"):
        await take(queue)
    assert await queue.renew(claims) == []
    assert len((await both_ends.pending())["a"]) == 3
    await queue.hand_back(claims[1:2])
    assert await queue.retry(claims[2], ERROR, 60_000)
    assert set(await both_ends.pending()) == {"a", "returned", HELD}
    await both_ends.client.config_set("maxmemory", "20mb")
    assert await queue.settle(claims[0], completed(claims[0].job.id)) is Settlement.STORED
    assert len(await take(queue)) == 2
    await both_ends.close()


async def test_an_evicting_server_is_refused(start_server: StartServer) -> None:
    """It would delete waiting jobs in silence."""
    server = start_server("--maxmemory", "20mb", "--maxmemory-policy", "allkeys-lru")
    both_ends = RedisInstallation(server.url, "own")
    with pytest.raises(QueueUnfit, match="noeviction"):
        await both_ends.queue()
    await both_ends.close()


async def test_a_cluster_is_refused(start_server: StartServer) -> None:
    """One connection does not reach all its keys."""
    both_ends = RedisInstallation(start_server("--cluster-enabled", "yes").url, "own")
    with pytest.raises(QueueUnfit, match="cluster-enabled no"):
        await both_ends.queue()
    await both_ends.close()


async def test_an_absent_server_is_named_without_its_password() -> None:
    """The message says where, not with what."""
    both_ends = RedisInstallation("redis://user:secret@127.0.0.1:1/0", "own")
    with pytest.raises(QueueUnavailable, match=r"127\.0\.0\.1:1") as caught:
        await both_ends.queue()
    assert "secret" not in str(caught.value)
    await both_ends.close()


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

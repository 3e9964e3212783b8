"""What the queue on Redis does when its server forgets, dies, is demoted or is full."""

from __future__ import annotations

import asyncio

import pytest
from tests.conftest import StartServer
from tests.support.builders import completed, make_job
from tests.support.installations import RedisInstallation, take
from tests.support.servers import free_port
from tests.support.steps import blocked, settle_all, until_answered
from tests.support.wait import wait_until

from laneway.schemas import wire
from laneway.schemas.job import Bucket, SloClass
from laneway.schemas.keys import GROUP, HELD, Lane
from laneway.schemas.outcome import JobError
from laneway.worker.errors import QueueUnavailable, QueueUnfit
from laneway.worker.ports import Settlement

pytestmark = [pytest.mark.redis, pytest.mark.unfinished]

LATENCY = Lane(0, SloClass.LATENCY, Bucket.SHORT)
ERROR = JobError(code="engine_died", message="the engine died")


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


@pytest.mark.case("A19")
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


@pytest.mark.case("A19")
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


@pytest.mark.case("A18")
async def test_what_has_ended_fades_and_nothing_else_is_left(own: RedisInstallation) -> None:
    """Of 500 jobs that ended no lane holds an entry and no counter a token; all that is left of them has a TTL."""
    queue = await own.queue()
    await own.submit(*(make_job() for _ in range(500)))
    before = set(await own.client.keys("*"))
    assert await settle_all(queue, await take(queue, 500)) == {Settlement.STORED}
    assert await own.client.xlen(own.part().lane(LATENCY)) == 0
    assert set((await own.client.hgetall(own.part().load)).values()) == {b"0"}
    kept = {key for key in await own.client.keys("*") if await own.client.pttl(key) < 0}
    assert kept <= before
    assert not any(b":job:" in key or b":result:" in key for key in kept)


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


@pytest.mark.case("A17")
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


@pytest.mark.case("A17")
async def test_an_evicting_server_is_refused(start_server: StartServer) -> None:
    """It would delete waiting jobs in silence."""
    server = start_server("--maxmemory", "20mb", "--maxmemory-policy", "allkeys-lru")
    both_ends = RedisInstallation(server.url, "own")
    with pytest.raises(QueueUnfit, match="noeviction"):
        await both_ends.queue()
    await both_ends.close()


@pytest.mark.case("A21")
async def test_a_cluster_is_refused(start_server: StartServer) -> None:
    """One connection does not reach all its keys."""
    # By default the nodes talk on a port 10,000 above the server's own, which a free one need not leave room for.
    options = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    both_ends = RedisInstallation(start_server(*options).url, "own")
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

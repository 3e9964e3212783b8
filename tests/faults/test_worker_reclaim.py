"""Jobs that a worker lost, by whatever mishap, run elsewhere while everybody else goes on. Real processes."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest
from tests.support.asking import assert_completed, results, settled, submit
from tests.support.installations import RedisInstallation
from tests.support.proxy import Proxy
from tests.support.serving import serving
from tests.support.wait import wait_until
from tests.support.worker_process import MakeWorker

from laneway.producer.client import Producer
from laneway.schemas.job import Bucket, SloClass
from laneway.schemas.keys import Keys, Lane
from laneway.schemas.outcome import Completed
from laneway.schemas.script import Script
from laneway.worker.engine.fake_engine import FakeEngineSettings

pytestmark = [pytest.mark.redis, pytest.mark.timeout(90)]


@pytest.fixture
async def proxy(redis_url: str) -> Any:
    """A proxy in front of the server."""
    async with Proxy(int(redis_url.split(":")[2].split("/")[0])) as proxy:
        yield proxy


def sha(script: str) -> bytes:
    """What stands in a request for that script."""
    return Script("laneway.worker.queue", script).sha.encode()


async def in_hand(both_ends: RedisInstallation, lane: str) -> int:
    """Jobs of a lane that the server counts as in somebody's hands."""
    return int((await both_ends.client.xpending(lane, "workers"))["pending"])


@pytest.mark.case("A3")
async def test_an_idle_worker_takes_over_on_every_lane_that_is_left(
    worker: MakeWorker, producer: Producer, redis_url: str, namespace: str
) -> None:
    """While it runs, not only when it starts; a lane that has vanished keeps no other back."""
    async with worker("a") as first:
        await first.ready()
        jobs = await submit(producer, 3, tokens=500)
        jobs += await submit(producer, 3, tokens=500, slo="throughput", bucket="long")
        await first.says("job.first_token", times=6)
        async with worker("b") as second:
            await second.ready()
            both_ends = RedisInstallation(redis_url, namespace)
            lane = Lane(0, SloClass.LATENCY, Bucket.MEDIUM)
            await both_ends.client.delete(both_ends.part().lane(lane))
            await both_ends.close()
            first.send(signal.SIGKILL)
            assert_completed(await results(producer, jobs), attempt=2)
            assert sorted(settled(second)) == sorted(jobs)


@pytest.mark.case("A2")
async def test_a_worker_killed_while_it_reclaims_stops_nobody(
    worker: MakeWorker, producer: Producer, proxy: Proxy
) -> None:
    """Whatever it had taken from the dead one and not heard of is found by the next, within the same lease."""
    async with worker("a") as first:
        await first.ready()
        jobs = await submit(producer, 20, tokens=500)
        await first.says("job.first_token", times=20)
        async with worker("b", url=proxy.url) as second, worker("c", **{"engine.start_s": 3}) as third:
            await second.ready()
            proxy.drop_reply(lambda request: sha("reclaim") in request, times=1000)
            first.send(signal.SIGKILL)
            await wait_until(lambda: proxy.dropped, "a reclaim")
            second.send(signal.SIGKILL)
            await third.ready()
            found = await results(producer, jobs)
            assert {type(result.outcome) for result in found} == {Completed}
            assert {result.attempt for result in found} <= {2, 3}
            assert sorted(settled(third)) == sorted(jobs)
        assert not settled(first)


@pytest.mark.case("A15")
async def test_a_delivery_that_nobody_heard_of_runs_although_its_owner_lives(
    worker: MakeWorker, producer: Producer, proxy: Proxy, redis_url: str, namespace: str
) -> None:
    """The server counts the job as in hand of a healthy worker, which never saw it: it is offered again."""
    part, lane = Keys(namespace).of_model("demo", 0), Lane(0, SloClass.LATENCY, Bucket.SHORT)
    both_ends = RedisInstallation(redis_url, namespace)
    async with worker("a", url=proxy.url) as only:
        await only.ready()
        proxy.drop_reply(lambda request: sha("pull") in request, times=1000)
        (job,) = await submit(producer, tokens=2)
        await wait_until(lambda: in_hand(both_ends, part.lane(lane)), "a delivery")
        proxy.forgive()
        found = await results(producer, [job])
        assert_completed(found, attempt=found[0].attempt)
        assert found[0].attempt > 1
        assert settled(only) == [job]
    await both_ends.close()


@pytest.mark.case("A6")
async def test_a_worker_whose_loop_was_blocked_settles_nothing_that_was_taken_from_it(
    worker: MakeWorker, producer: Producer, redis_url: str, namespace: str
) -> None:
    """As long as the loop stands still no lease is renewed; once it goes on, the worker knows that it was away."""
    both_ends = RedisInstallation(redis_url, namespace)
    queue = await both_ends.queue("blocked", lease_s=1.5)
    engine = FakeEngineSettings(seats=32, base_s=0.02)
    async with serving(both_ends, engine, queue, lease_s=1.5) as blocked:
        jobs = await submit(producer, 30, tokens=60)
        await blocked.says("job.first_token", 30)
        async with worker("b") as second:
            await second.ready()
            until = time.monotonic() + 20
            while len(_claimed(second)) < 30 and time.monotonic() < until:
                time.sleep(0.02)  # noqa: ASYNC251 - the loop is to be blocked
            await blocked.says("job.lost", 30)
            assert_completed(await results(producer, jobs), attempt=2)
            assert sorted(settled(second)) == sorted(jobs)
        assert not blocked.told("job.settled")
    await both_ends.close()


def _claimed(worker: Any) -> list[Any]:
    return [line for line in worker.lines() if line.get("event") == "job.claimed"]

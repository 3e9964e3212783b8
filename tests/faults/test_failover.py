"""What jobs, workers and producers do when their server is demoted, reads its data or is slow. Real processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import redis.asyncio
from redis.exceptions import BusyLoadingError
from redis.exceptions import ConnectionError as NoConnection
from tests.conftest import NAMES, StartServer
from tests.support.asking import assert_completed, results, settled, submit
from tests.support.proxy import Proxy
from tests.support.servers import Server, free_port
from tests.support.wait import wait_until
from tests.support.worker_process import MakeWorker

from laneway.producer.client import Producer
from laneway.producer.errors import QueueUnavailable, SubmitUncertain

pytestmark = [pytest.mark.redis, pytest.mark.timeout(90)]

BACK_S = 5.0
"""How long after its return the server may go unnoticed: the longest pause between two tries, and room."""


@pytest.fixture(params=[name for name in NAMES if name != "given"] or ["redis"])
def server(request: pytest.FixtureRequest, start_server: StartServer) -> Server:
    """A server of the test's own, of each kind in turn."""
    return start_server(
        "--repl-diskless-sync-delay", "0", "--enable-debug-command", "yes", name=request.param
    )


@pytest.fixture
async def producer(server: Server, namespace: str) -> AsyncIterator[Producer]:
    """A producer of that server to whom every model is known."""
    async with Producer(server.url, namespace=namespace, check_model=False) as made:
        yield made


@pytest.mark.parametrize("link", ["up", "broken"])
@pytest.mark.case("A19")
async def test_jobs_outlive_a_demotion_of_the_server(
    worker: MakeWorker, producer: Producer, server: Server, link: str
) -> None:
    """READONLY while it is a replica, MASTERDOWN where its master cannot be reached; promoted again, all goes on."""
    async with (
        worker(url=server.url, lease_s=10) as only,
        redis.asyncio.Redis.from_url(server.url, protocol=2) as admin,
    ):
        await only.ready()
        jobs = await submit(producer, 10)
        await only.says("job.first_token", times=10)
        if link == "broken":
            await admin.config_set("replica-serve-stale-data", "no")
        await admin.replicaof("127.0.0.1", str(free_port()))
        await only.says("queue.unavailable")
        with pytest.raises((QueueUnavailable, SubmitUncertain)):
            await submit(producer)
        await admin.replicaof("NO", "ONE")
        await only.says("queue.recovered", timeout=BACK_S)
        assert_completed(await results(producer, jobs), attempt=1)
        more = await submit(producer, 3, tokens=2)
        assert_completed(await results(producer, more), attempt=1)
        assert sorted(settled(only)) == sorted(jobs + more)


async def test_a_server_that_reads_its_data_is_waited_for(
    worker: MakeWorker, producer: Producer, server: Server
) -> None:
    """LOADING is an outage like any other: outcomes reached meanwhile are stored when it is over, each once."""
    async with worker(url=server.url, lease_s=20) as only:
        await only.ready()
        async with redis.asyncio.Redis.from_url(server.url, protocol=2) as admin:
            await admin.mset({f"filler-{number}": b"x" * 100 for number in range(1000)})
            await admin.bgrewriteaof()
            await wait_until(lambda: _rewritten(admin), "an append-only file of single keys")
        jobs = await submit(producer, 10)
        await only.says("job.first_token", times=10)
        server.kill()
        await only.says("queue.unavailable")
        slowly = ("--key-load-delay", "2000", "--loading-process-events-interval-bytes", "1024")
        starting = asyncio.create_task(asyncio.to_thread(server.start, *slowly))
        async with redis.asyncio.Redis.from_url(server.url, protocol=2, retry=None) as other:
            await wait_until(lambda: _loading(other), "LOADING")
        await starting
        await only.says("queue.recovered", timeout=BACK_S)
        assert_completed(await results(producer, jobs), attempt=1)
        assert sorted(settled(only)) == sorted(jobs)
        assert len(await only.says("queue.unavailable")) == 1


async def test_a_half_open_link_is_given_up_and_made_anew(
    worker: MakeWorker, producer: Producer, server: Server
) -> None:
    """Nothing comes back and nothing is closed: after the time for a reply that is an outage, and it ends by itself."""
    async with Proxy(server.port) as proxy, worker(url=proxy.url, lease_s=30) as only:
        await only.ready()
        jobs = await submit(producer, 5)
        await only.says("job.first_token", times=5)
        proxy.stall()
        await only.says("queue.unavailable")
        proxy.flow()
        await only.says("queue.recovered", timeout=BACK_S)
        assert_completed(await results(producer, jobs), attempt=1)
        assert sorted(settled(only)) == sorted(jobs)


async def test_a_slow_server_is_no_outage(worker: MakeWorker, server: Server, namespace: str) -> None:
    """A third of a second for each reply: jobs take longer, none runs twice, nobody calls the server lost."""
    async with (
        Proxy(server.port) as proxy,
        worker(url=proxy.url, lease_s=10) as only,
        Producer(proxy.url, namespace=namespace, check_model=False) as producer,
    ):
        await only.ready()
        proxy.delay_s = 0.3
        jobs = await submit(producer, 5, tokens=10)
        assert_completed(await results(producer, jobs), attempt=1)
        assert sorted(settled(only)) == sorted(jobs)
        assert not [line for line in only.lines() if line.get("event") == "queue.unavailable"]


async def test_a_server_that_forgot_everything_goes_on_as_a_new_one(
    worker: MakeWorker, producer: Producer, server: Server
) -> None:
    """FLUSHALL and SCRIPT FLUSH: what was in hand still gets its outcome, and lanes come back with their groups at 0."""
    async with (
        worker(url=server.url, lease_s=10) as only,
        redis.asyncio.Redis.from_url(server.url, protocol=2) as admin,
    ):
        await only.ready()
        jobs = await submit(producer, 5)
        await only.says("job.first_token", times=5)
        await admin.flushall()
        await admin.script_flush()
        more = await submit(producer, 3, tokens=2)
        assert_completed(await results(producer, more), attempt=1)
        await only.says("job.settled", times=8)
        assert_completed(await results(producer, jobs), attempt=1)


async def _rewritten(client: redis.asyncio.Redis) -> bool:
    persistence = await client.info("persistence")
    return not persistence["aof_rewrite_in_progress"] and not persistence["aof_rewrite_scheduled"]


async def _loading(client: redis.asyncio.Redis) -> bool:
    try:
        await client.ping()
    except BusyLoadingError:
        return True
    except NoConnection:
        pass
    return False

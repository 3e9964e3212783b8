"""What jobs, workers and producers do when their server is demoted, reads its data or is slow. Real processes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import redis.asyncio
from tests.conftest import NAMES, StartServer
from tests.support.asking import assert_completed, results, settled, submit
from tests.support.servers import Server, free_port
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

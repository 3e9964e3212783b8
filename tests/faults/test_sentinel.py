"""Producers and workers whose server is named by sentinels. Real servers, a real sentinel."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis.asyncio
from tests.conftest import StartServer
from tests.support.asking import assert_completed, results, settled, submit
from tests.support.sentinel import Sentinel
from tests.support.servers import binaries
from tests.support.worker_process import MakeWorker

from laneway.producer.client import Producer

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(90)]

TAKEN_OVER_S = 15.0
"""A promotion (half a second to notice, some to elect and tell) and our own pauses, with room."""


@pytest.mark.parametrize("name", sorted(binaries()))
@pytest.mark.parametrize("end", ["killed", "demoted"])
@pytest.mark.case("A19")
async def test_jobs_finish_once_when_another_server_becomes_the_master(
    worker: MakeWorker, start_server: StartServer, namespace: str, tmp_path: Path, name: str, end: str
) -> None:
    """The replica is promoted; whoever waits, submits or works goes on there without being told where."""
    master = start_server("--repl-diskless-sync-delay", "0", name=name)
    start_server("--replicaof", "127.0.0.1", str(master.port), name=name)
    async with redis.asyncio.Redis.from_url(master.url, protocol=2) as client:
        # Without it a master that was passed over takes writes until it is told, and they are lost.
        await client.config_set("min-replicas-to-write", 1)
    async with (
        Sentinel(master, tmp_path / "sentinel") as sentinel,
        worker(url=sentinel.url, lease_s=30) as only,
        Producer(sentinel.url, namespace=namespace, check_model=False) as producer,
    ):
        await only.ready()
        jobs = await submit(producer, 10, tokens=600)
        await only.says("job.first_token", times=10)
        async with redis.asyncio.Redis.from_url(master.url, protocol=2) as client:
            assert await client.wait(1, 5000) == 1
        if end == "killed":
            master.kill()
        else:
            await sentinel.switch()
        await only.says("queue.recovered", timeout=TAKEN_OVER_S)
        assert_completed(await results(producer, jobs), attempt=1)
        more = await submit(producer, 3, tokens=2)
        assert_completed(await results(producer, more), attempt=1)
        assert sorted(settled(only)) == sorted(jobs + more)

"""Queues on servers to be troubled."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import StartServer
from tests.support.installations import RedisInstallation
from tests.support.proxy import Proxy
from tests.support.worker_process import MakeWorker, WorkerProcess

from laneway.producer.client import Producer

STEP_S = 0.01
"""Length of an engine step of `worker`: a job of 100 tokens takes a second."""


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


@pytest.fixture
def worker(redis_url: str, namespace: str, tmp_path: Path) -> MakeWorker:
    """Makes workers with 32 seats and a lease of 1.5 seconds, each with a log of its own."""

    def make(name: str = "a", **options: object) -> WorkerProcess:
        given: dict[str, Any] = {"lease_s": 1.5, "engine.seats": 32, "engine.base_s": STEP_S, **options}
        return WorkerProcess(given.pop("url", redis_url), namespace, tmp_path / f"{name}.log", **given)

    return make


@pytest.fixture
async def producer(redis_url: str, namespace: str) -> AsyncIterator[Producer]:
    """A producer to whom every model is known."""
    async with Producer(redis_url, namespace=namespace, check_model=False) as made:
        yield made

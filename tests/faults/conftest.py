"""Queues on servers to be troubled."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.conftest import StartServer
from tests.support.installations import RedisInstallation
from tests.support.proxy import Proxy


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

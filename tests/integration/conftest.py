"""Both ends of a queue, for whoever runs a worker between them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.conftest import NAMES, Servers
from tests.support.installations import Installation, MemoryInstallation, RedisInstallation


@pytest.fixture(params=["memory", *(pytest.param(name, marks=pytest.mark.redis) for name in NAMES[:1])])
async def ends(
    request: pytest.FixtureRequest, servers: Servers, namespace: str
) -> AsyncIterator[Installation]:
    """Both ends of a queue: in memory, and on a real server."""
    if request.param == "memory":
        made: Installation = MemoryInstallation()
    else:
        made = RedisInstallation(servers.get(request.param).url, namespace)
    yield made
    await made.close()


@pytest.fixture
def output(namespace: str) -> str:
    """The key of an output stream."""
    return f"{{{namespace}:out:1}}"

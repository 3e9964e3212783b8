"""What tests share: real servers, a namespace of their own, and proof that they leave nothing behind."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.support.servers import GivenServer, Server, binaries, given_url

NAMES = ["given"] if given_url() else sorted(binaries(), reverse=True)
PERMANENT = (":lane:", ":dead", ":models", ":held", ":load")
"""Keys that live without a TTL. All others must fade by themselves."""


class Servers:
    """The session's servers, started when first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.running: dict[str, Server | GivenServer] = {}

    def get(self, name: str) -> Server | GivenServer:
        """The server of that name."""
        if name not in self.running:
            url = given_url()
            if name == "given" and url:
                self.running[name] = GivenServer(url)
            else:
                self.running[name] = Server(name, binaries()[name], self._folder / name)
        return self.running[name]


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """All servers of the session."""
    servers = Servers(tmp_path_factory.mktemp("servers"))
    yield servers
    for server in servers.running.values():
        server.close()


@pytest.fixture
def redis_url(servers: Servers) -> str:
    """A server, shared with other tests: use a `namespace`, and stop nothing."""
    if not NAMES:
        pytest.skip("no server: neither laneway[embedded] nor /usr/bin/redis-server is installed")
    return servers.get(NAMES[0]).url


@pytest.fixture(params=NAMES)
def each_redis_url(request: pytest.FixtureRequest, servers: Servers) -> str:
    """Each of the servers in turn: the test runs on all of them."""
    return servers.get(request.param).url


StartServer = Callable[..., Server]


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    """Starts a server of the test's own, to be killed, frozen and filled: `start_server("--maxmemory", "5mb")`."""
    if not binaries():
        pytest.skip("no server: neither laneway[embedded] nor /usr/bin/redis-server is installed")
    started: list[Server] = []

    def start(*options: str, name: str | None = None) -> Server:
        chosen = name or next(iter(binaries()))
        server = Server(chosen, binaries()[chosen], tmp_path / f"server-{len(started)}", options)
        started.append(server)
        return server

    yield start
    for server in started:
        server.close()


@pytest.fixture
async def namespace(request: pytest.FixtureRequest, servers: Servers) -> AsyncIterator[str]:
    """A namespace that no other test uses.

    Afterwards no coroutine of the test may still run, every key must have a TTL but those that are meant to stay,
    and no job may be in hand (unless the test is marked `unfinished`).
    """
    name = f"t-{uuid.uuid4().hex[:12]}"
    before = asyncio.all_tasks()
    yield name
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    assert not left, f"still running: {left}"
    unfinished = request.node.get_closest_marker("unfinished") is not None
    for server in servers.running.values():
        with redis.Redis.from_url(server.url, protocol=2) as client:
            leaks = find_leaks(client, name, unfinished=unfinished)
            drop(client, name)
        assert not leaks, "\n".join(leaks)


def keys_of(client: Any, namespace: str) -> list[bytes]:
    """Every key of a namespace."""
    patterns = (f"{namespace}:*", f"{{{namespace}:*")
    return [key for pattern in patterns for key in client.scan_iter(match=pattern, count=1000)]


def drop(client: Any, namespace: str) -> None:
    """Delete every key of a namespace."""
    for key in keys_of(client, namespace):
        client.unlink(key)


def find_leaks(client: Any, namespace: str, *, unfinished: bool = False) -> list[str]:
    """What a test left behind: keys that never fade, and jobs in somebody's hands."""
    leaks = []
    for key in keys_of(client, namespace):
        text = key.decode()
        if client.ttl(key) == -1 and not any(part in text for part in PERMANENT):
            leaks.append(f"{text} has no TTL")
        if ":lane:" in text and not unfinished and client.type(key) == b"stream":
            leaks += [
                f"{text}: {group['pending']} jobs in hand of {group['name'].decode()}"
                for group in client.xinfo_groups(key)
                if group["pending"]
            ]
    return leaks

"""Runs the peers against one server, in turns, and takes the time."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import redis
from msgspec import Struct

from laneway.schemas.errors import LanewayError
from laneway.worker.child import dying_with_us
from laneway.worker.embedded import EmbeddedServer

ROUND_S = 300.0
_PEERS = "laneway.worker.bench.queue.peers"


class Peer(Struct, frozen=True):
    """One queue in the race."""

    name: str
    module: str
    python: Path
    packages: tuple[str, ...]
    """Whose versions are told with the figures."""


class Figure(Struct, frozen=True):
    """What one queue did at one batch size."""

    peer: str
    batch: int
    jobs: int
    rates: tuple[float, ...]
    """Jobs per second of each round, from the first submit to the last outcome stored."""

    @property
    def median(self) -> float:
        """The rate that is told."""
        return statistics.median(self.rates)


class BenchFailed(LanewayError):
    """A peer ended early or stored nothing: there is no figure."""


def find_peers(environments: Path) -> tuple[list[Peer], list[str]]:
    """The queues that can run here, ours first, and the names of those that cannot."""
    ours = Path(sys.executable)
    wanted = [
        Peer("laneway", "laneway_peer", ours, ("laneway", "redis")),
        Peer("arq", "arq_peer", ours, ("arq", "redis")),
        Peer("taskiq-redis", "taskiq_peer", environments / "taskiq/bin/python", ("taskiq-redis", "redis")),
        Peer("saq", "saq_peer", environments / "saq/bin/python", ("saq", "redis")),
    ]
    there = [peer for peer in wanted if peer.python.exists()]
    return there, [peer.name for peer in wanted if peer not in there]


@contextmanager
def some_server(url: str | None) -> Iterator[str]:
    """The server at `url`, which must be empty, or an embedded one."""
    if url:
        with redis.Redis.from_url(url) as client:
            if client.dbsize():
                raise BenchFailed(
                    "the database is not empty: rounds are separated by FLUSHDB, so give an empty one"
                )
        yield url
        return
    with TemporaryDirectory(prefix="laneway-bench-") as folder, EmbeddedServer(Path(folder)) as server:
        yield server.url


async def race(
    url: str, peers: list[Peer], jobs: dict[int, int], rounds: int, told: Callable[[str], None]
) -> list[Figure]:
    """The figures, by batch and peer. Peers take turns within each round, so that all meet the same disturbances.

    Args:
        jobs: how many jobs a round has, by batch size.
        told: hears of each run.
    """
    rates: dict[tuple[int, str], list[float]] = {(batch, peer.name): [] for batch in jobs for peer in peers}
    for number in range(rounds):
        for batch, count in jobs.items():
            for peer in peers[number % len(peers) :] + peers[: number % len(peers)]:
                rate = await run_once(url, peer, count, batch)
                rates[batch, peer.name].append(rate)
                told(f"round {number + 1} of {rounds}, batch {batch}: {peer.name} {rate:.0f} jobs/s")
    return [Figure(name, batch, jobs[batch], tuple(found)) for (batch, name), found in rates.items()]


async def run_once(url: str, peer: Peer, jobs: int, batch: int) -> float:
    """Jobs per second of one run, in processes and a database that are new."""
    try:
        async with asyncio.timeout(ROUND_S):
            async with _Process.start(peer, "worker", url, jobs, batch) as worker:
                await worker.hear("ready")
                async with _Process.start(peer, "producer", url, jobs, batch) as producer:
                    await producer.hear("ready")
                    producer.say_go()
                    begin = await producer.hear("begin")
                    end = await worker.hear("end")
    except TimeoutError:
        raise BenchFailed(f"{peer.name}: {jobs} jobs were not done after {ROUND_S:.0f} s") from None
    with redis.Redis.from_url(url) as client:
        stored = client.dbsize()
        client.flushdb()
    if stored < jobs:
        raise BenchFailed(f"{peer.name}: {jobs} jobs left {stored} keys, so results are missing")
    return jobs / float(end - begin)


async def versions(peer: Peer) -> str:
    """The releases that ran, such as `saq 0.26.4, redis 7.4.1`."""
    code = "import sys; from importlib.metadata import version; print(*(f'{n} {version(n)}' for n in sys.argv[1:]), sep=', ')"
    process = await asyncio.create_subprocess_exec(
        str(peer.python), "-c", code, *peer.packages, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    return out.decode().strip()


class _Process:
    """A peer in one of its roles."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self._name = name
        self._process = process

    @classmethod
    @asynccontextmanager
    async def start(cls, peer: Peer, role: str, url: str, jobs: int, batch: int) -> Any:
        """The process; it is gone afterwards."""
        command = [str(peer.python), "-m", f"{_PEERS}.{peer.module}", role, url, str(jobs), str(batch)]
        process = await asyncio.create_subprocess_exec(
            *dying_with_us(command),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])},
        )
        try:
            yield cls(f"{peer.name} {role}", process)
        finally:  # a round is over when its last outcome is stored; how long a peer takes to end is not measured
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def hear(self, word: str) -> float:
        """The value that the process gives to `word`."""
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            said = json.loads(line)
            if word in said:
                return float(said[word])
        raise BenchFailed(f"{self._name} ended without a word of {word!r}; its own words are above")

    def say_go(self) -> None:
        """Let a producer begin."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")

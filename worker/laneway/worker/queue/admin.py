"""What commands want of a server beside jobs: to know it, and to leave nothing behind."""

from __future__ import annotations

import time
from typing import Any

from msgspec import Struct
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from laneway.schemas.sentinels import read_sentinels
from laneway.worker.errors import QueueUnavailable, QueueUnfit
from laneway.worker.queue.connection import MasterPool, asking
from laneway.worker.settings import mask_url

_DELETE_BATCH = 500


class ServerFacts(Struct, frozen=True, kw_only=True):
    """What a server says of itself. It needs INFO only, which managed servers allow."""

    kind: str
    """`redis` or `valkey`."""
    version: tuple[int, ...]
    redis_version: tuple[int, ...]
    """Release of Redis whose commands it has: Valkey is a 7.2.4 with more."""
    eviction: str
    """`maxmemory-policy`; empty when it does not tell."""
    maxmemory: int
    """Bytes; 0: no limit."""
    used_memory: int
    aof: bool
    replica: bool
    cluster: bool
    round_trip_ms: float


async def server_facts(url: str, timeout_s: float = 3.0) -> ServerFacts:
    """Ask the server at `url`.

    Raises:
        QueueUnavailable: it is not there, or refuses; told without any password.
    """
    try:
        async with _client(url, timeout_s) as client:
            begin = time.monotonic()
            await client.ping()
            round_trip = time.monotonic() - begin
            info: dict[str, Any] = await client.info()
    except (
        RedisError,
        OSError,
        ValueError,
        RuntimeError,
    ) as error:  # RuntimeError: uvloop, of a cut connection
        raise QueueUnavailable(f"no answer from {mask_url(url)}: {error or type(error).__name__}") from None
    redis_version = _version(info.get("redis_version"))
    kind = "valkey" if info.get("server_name") == "valkey" else "redis"
    return ServerFacts(
        kind=kind,
        version=_version(info.get("valkey_version")) or redis_version,
        redis_version=redis_version,
        eviction=str(info.get("maxmemory_policy", "")),
        maxmemory=int(info.get("maxmemory", 0)),
        used_memory=int(info.get("used_memory", 0)),
        aof=bool(int(info.get("aof_enabled", 0))),
        replica=info.get("role") == "slave",
        cluster=bool(int(info.get("cluster_enabled", 0))),
        round_trip_ms=1000 * round_trip,
    )


def check_fit(facts: ServerFacts) -> None:
    """Refuse a server that cannot hold jobs safely.

    Raises:
        QueueUnfit: names what is wrong and what it must be.
    """
    if facts.redis_version < (7, 0):
        version = ".".join(map(str, facts.version))
        raise QueueUnfit(f"Redis: expected 7.0 or later (or Valkey 8), got {facts.kind} {version}")
    if facts.eviction and facts.eviction != "noeviction" and facts.maxmemory:
        raise QueueUnfit(
            f"maxmemory-policy: expected noeviction (any other deletes waiting jobs), got {facts.eviction}"
        )
    if facts.cluster:
        raise QueueUnfit(
            "Redis: expected one server with all keys (cluster-enabled no), got a node of a cluster"
        )
    if facts.replica:
        raise QueueUnfit("Redis: expected a primary, got a replica, which takes no jobs")


async def drop_namespace(url: str, namespace: str, timeout_s: float = 10.0) -> int:
    """Delete every key of `namespace` (letters, digits and `_ . -`) and return how many there were.

    Raises:
        QueueUnavailable: the server is not there.
    """
    dropped = 0
    try:
        async with _client(url, timeout_s) as client:
            for pattern in (f"{namespace}:*", f"{{{namespace}:*"):
                batch: list[bytes] = []
                async for key in client.scan_iter(match=pattern, count=_DELETE_BATCH):
                    batch.append(key)
                    if len(batch) == _DELETE_BATCH:
                        dropped += await client.unlink(*batch)
                        batch.clear()
                if batch:
                    dropped += await client.unlink(*batch)
    except (RedisError, OSError, TimeoutError) as error:
        raise QueueUnavailable(f"no answer from {mask_url(url)}: {error or type(error).__name__}") from None
    return dropped


def _client(url: str, timeout_s: float) -> Any:
    options: dict[str, Any] = {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
    }
    if (sentinels := read_sentinels(url)) is not None:
        pool = MasterPool(sentinels.service, asking(sentinels, timeout_s), **sentinels.login, **options)
        return Redis.from_pool(pool)
    return Redis.from_url(url, **options)


def _version(text: object) -> tuple[int, ...]:
    parts = str(text or "").split(".")
    return tuple(int(part) for part in parts if part.isdecimal())

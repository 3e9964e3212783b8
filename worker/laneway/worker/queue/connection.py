"""Connections to the server: explicit time-outs, no silent resend, and none of redis' exceptions beyond this module."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hiredis import pack_command
from msgspec import Struct
from redis.asyncio import BlockingConnectionPool
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, ReadOnlyError, RedisError, ResponseError

from laneway.schemas.script import Script
from laneway.schemas.sentinels import Sentinels, read_sentinels
from laneway.worker.errors import QueueUnavailable, SettingsError
from laneway.worker.queue.batches import Batches
from laneway.worker.settings import mask_url

CONNECT_S = 2.0
REPLY_S = 5.0
"""Longest wait for a reply to a command: far above any script's time, far below a lease."""
CONNECTIONS = 8
PIPELINE = 256
"""Most commands that are sent before their replies are read."""
MISSING = ("NOGROUP", "UNBLOCKED", "NOSTREAM")
"""Error prefixes that mean: a lane or its group has vanished (a flush, a failover) and must be made anew."""


Command = tuple[Any, ...]


class MasterPool(SentinelConnectionPool, BlockingConnectionPool):  # type: ignore[misc]
    """Connections to whatever server the sentinels call the master when one is made."""

    async def disconnect(self, inuse_connections: bool = True) -> None:
        """Close these, and those to the sentinels: their client does not."""
        await super().disconnect(inuse_connections)
        for sentinel in self.sentinel_manager.sentinels:
            await sentinel.aclose()


def asking(sentinels: Sentinels, timeout_s: float) -> Sentinel:
    """Asks one sentinel after the other, each for `timeout_s` at most."""
    patience = {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s}
    return Sentinel(sentinels.addresses, sentinel_kwargs={**patience, "retry": Retry(NoBackoff(), 0)})


class Connection:
    """Commands of one worker. Calls of one turn of the event loop travel together, as one pipeline."""

    def __init__(self, url: str) -> None:
        self.address = mask_url(url)
        self._url = url
        self._pool = self._make_pool(REPLY_S, CONNECTIONS)
        self._batches: Batches[Command, Any] = Batches(self._exchange, PIPELINE)

    def _make_pool(self, timeout_s: float, connections: int) -> Any:
        options: dict[str, Any] = {
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
            "socket_timeout": timeout_s,
            "socket_connect_timeout": CONNECT_S,
            "socket_keepalive": True,
            "health_check_interval": 0,
            "max_connections": connections,
            "timeout": timeout_s,
        }
        try:
            if (sentinels := read_sentinels(self._url)) is not None:
                return MasterPool(
                    sentinels.service, asking(sentinels, CONNECT_S), **sentinels.login, **options
                )
            return BlockingConnectionPool.from_url(self._url, **options)
        except ValueError as error:
            raise SettingsError(
                f"redis_url: expected redis://, rediss://, unix:// or redis+sentinel://, got {self.address}: {error}"
            ) from None

    def blocking(self, block_s: float) -> Blocking:
        """A connection of its own for a read that blocks up to `block_s`; its time-out is longer than the block."""
        return Blocking(self.address, self._make_pool(block_s + 3.0, 1))

    async def close(self) -> None:
        """Wait for what was sent, then close."""
        await self._batches.drain()
        with mapped(self.address):
            await self._pool.disconnect()

    async def ask(self, *command: Any) -> Any:
        """The reply to one command, as the server sends it: bytes, integers and lists.

        Raises:
            QueueUnavailable: no reply in time, or an error reply; `.missing` tells whether a lane or group is gone.
        """
        reply = await self._batches(command)
        if isinstance(reply, ErrorReply):
            raise unavailable(self.address, reply.error)
        return reply

    async def run(self, script: Script, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        """The reply of a script. Every script here may be repeated after NOSCRIPT, since it then has done nothing."""
        try:
            return await self.ask(*script.command(keys, arguments))
        except QueueUnavailable as error:
            if not isinstance(error.__cause__, NoScriptError):
                raise
        await self.ask("SCRIPT", "LOAD", script.source)
        return await self.ask(*script.command(keys, arguments))

    async def _exchange(self, commands: Sequence[Command]) -> list[Any]:
        with mapped(self.address):
            return await exchange(self._pool, commands)


class Blocking:
    """One connection for one blocking read at a time."""

    def __init__(self, address: str, pool: Any) -> None:
        self._address = address
        self._pool = pool

    async def ask(self, *command: Any) -> Any:
        """The reply to a command that may block. Cancelling it costs the connection. Raises `QueueUnavailable`."""
        with mapped(self._address):
            (reply,) = await exchange(self._pool, [command])
        if isinstance(reply, ErrorReply):
            raise unavailable(self._address, reply.error)
        return reply

    async def close(self) -> None:
        """Close the connection."""
        with mapped(self._address):
            await self._pool.disconnect()


class ErrorReply(Struct, frozen=True):
    """What the server refused."""

    error: ResponseError


async def exchange(pool: Any, commands: Sequence[Command]) -> list[Any]:
    """The replies to `commands`, from one connection in one go."""
    with cuts_mapped():
        connection = await pool.get_connection()
    replies: list[Any] = []
    clean = False
    try:
        with cuts_mapped():
            await connection.send_packed_command(b"".join(map(pack_command, commands)))
        for _ in commands:
            try:
                replies.append(await connection.read_response())
            except ResponseError as error:
                replies.append(ErrorReply(error))
        # After a failover the name may stand for another server: look it up again.
        clean = not any(isinstance(reply, ErrorReply) and _moved(reply.error) for reply in replies)
    finally:
        if not clean:  # replies may be on their way: nobody else may get them
            await connection.disconnect(nowait=True)
        await pool.release(connection)
    return replies


def _moved(error: ResponseError) -> bool:
    """Whether another server may be the master by now: this one is a replica, or has lost its own."""
    return isinstance(error, ReadOnlyError) or str(error).startswith("NOREPLICAS")


@contextmanager
def cuts_mapped() -> Iterator[None]:
    """Name a connection that was cut before something was written to it as asyncio does: uvloop says RuntimeError."""
    try:
        yield
    except RuntimeError as error:
        raise ConnectionError(str(error)) from error


def unavailable(address: str, error: BaseException) -> QueueUnavailable:
    """`error` as ours. Its text names the server without a password, and never repeats a command."""
    text = str(error)
    reason = text.split(" script: ")[0][:200] if isinstance(error, ResponseError) else type(error).__name__
    mapped = QueueUnavailable(f"Redis at {address}: {reason}")
    mapped.missing = text.startswith(MISSING)
    mapped.__cause__ = error
    return mapped


@contextmanager
def mapped(address: str) -> Iterator[None]:
    """Turn what redis and the network raise into `QueueUnavailable`."""
    try:
        yield
    except (RedisError, OSError, TimeoutError) as error:
        raise unavailable(address, error) from None

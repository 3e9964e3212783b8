"""Connections to the server: explicit time-outs, no silent resend, and none of redis' exceptions beyond this module."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError, ResponseError

from laneway.worker.errors import QueueUnavailable, SettingsError
from laneway.worker.settings import mask_url

CONNECT_S = 2.0
REPLY_S = 5.0
"""Longest wait for a reply to a command: far above any script's time, far below a lease."""
CONNECTIONS = 8
MISSING = ("NOGROUP", "UNBLOCKED", "NOSTREAM")
"""Error prefixes that mean: a lane or its group has vanished (a flush, a failover) and must be made anew."""


class Script:
    """A Lua script of the `lua` folder, called by its hash and loaded where the server does not have it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.source = resources.files("laneway.worker.queue").joinpath(f"lua/{name}.lua").read_text("utf-8")
        self.sha = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()


Command = tuple[Any, ...]


class Connection:
    """Commands of one worker. Calls of one turn of the event loop travel together, as one pipeline."""

    def __init__(self, url: str) -> None:
        self.address = mask_url(url)
        self._url = url
        self._commands = self._client(REPLY_S, CONNECTIONS)
        self._waiting: list[tuple[Command, asyncio.Future[Any]]] = []
        self._flushes: set[asyncio.Task[None]] = set()

    def _client(self, timeout_s: float, connections: int) -> Any:
        try:
            pool = BlockingConnectionPool.from_url(
                self._url,
                protocol=2,
                retry=Retry(NoBackoff(), 0),
                socket_timeout=timeout_s,
                socket_connect_timeout=CONNECT_S,
                socket_keepalive=True,
                health_check_interval=0,
                max_connections=connections,
                timeout=timeout_s,
            )
        except ValueError as error:
            raise SettingsError(
                f"redis_url: expected redis://, rediss:// or unix://, got {self.address}: {error}"
            ) from None
        client = Redis(connection_pool=pool)
        client.response_callbacks.clear()  # replies as the server sends them, whatever the version of redis-py
        return client

    def blocking(self, block_s: float) -> Any:
        """A client of its own for a read that blocks up to `block_s`; its time-out is longer than the block."""
        return self._client(block_s + 3.0, 1)

    async def close(self) -> None:
        """Wait for what was sent, then close."""
        if self._flushes:
            await asyncio.wait(self._flushes)
        with _mapped(self.address):
            await self._commands.aclose()
            await self._commands.connection_pool.disconnect()

    async def ask(self, *command: Any) -> Any:
        """The reply to one command.

        Raises:
            QueueUnavailable: no reply in time, or an error reply; `.missing` tells whether a lane or group is gone.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((command, future))
        if len(self._waiting) == 1:
            flush = asyncio.ensure_future(self._flush())
            self._flushes.add(flush)
            flush.add_done_callback(self._flushes.discard)
        # Shielded: a caller that is cancelled must not cut the connection under the others' replies.
        reply = await asyncio.shield(future)
        if isinstance(reply, Exception):
            raise unavailable(self.address, reply)
        return reply

    async def run(self, script: Script, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        """The reply of a script. Every script here may be repeated after NOSCRIPT, since it then has done nothing."""
        try:
            return await self.ask("EVALSHA", script.sha, len(keys), *keys, *arguments)
        except QueueUnavailable as error:
            if not isinstance(error.__cause__, NoScriptError):
                raise
        await self.ask("SCRIPT", "LOAD", script.source)
        return await self.ask("EVALSHA", script.sha, len(keys), *keys, *arguments)

    async def _flush(self) -> None:
        batch, self._waiting = self._waiting, []
        try:
            replies = await self._send([command for command, _ in batch])
        except (RedisError, OSError, TimeoutError) as error:
            replies = [error] * len(batch)
        except asyncio.CancelledError:
            replies = [ConnectionError("closing")] * len(batch)
        for (_, future), reply in zip(batch, replies, strict=True):
            if not future.done():
                future.set_result(reply)

    async def _send(self, commands: Sequence[Command]) -> Sequence[Any]:
        pipeline = self._commands.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)  # on a pipeline this only queues
        replies: Sequence[Any] = await pipeline.execute(raise_on_error=False)
        return replies


def unavailable(address: str, error: BaseException) -> QueueUnavailable:
    """`error` as ours. Its text names the server without a password, and never repeats a command."""
    text = str(error)
    reason = text.split(" script: ")[0][:200] if isinstance(error, ResponseError) else type(error).__name__
    mapped = QueueUnavailable(f"Redis at {address}: {reason}")
    mapped.missing = text.startswith(MISSING)
    mapped.__cause__ = error
    return mapped


@contextmanager
def _mapped(address: str) -> Iterator[None]:
    try:
        yield
    except (RedisError, OSError, TimeoutError) as error:
        raise unavailable(address, error) from None


mapped = _mapped

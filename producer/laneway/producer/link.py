"""Connections to the server: the only module of the producer that knows redis.

Every command that a producer sends may be sent twice without harm: reads are reads, and the scripts know a job by the
id that the producer chose. So a lost reply is asked for once more, openly and here; the client library's own retries,
which would also repeat what must not be repeated, are off.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncIterator, Sequence
from typing import Any

from msgspec import Struct
from redis.asyncio.connection import ConnectionPool
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import TimeoutError as RedisTimeout

from laneway.producer.errors import InvalidSettings, ProducerClosed, QueueFull, QueueUnavailable
from laneway.producer.settings import ProducerSettings
from laneway.schemas.script import Script
from laneway.schemas.sentinels import read_sentinels

Command = tuple[Any, ...]
"""A command as the server takes it: name and arguments, text or bytes."""

MEMORY_RETRY_AFTER = 5.0
"""Seconds: memory frees as results expire, not at once."""


class Wait(Struct, frozen=True):
    """Ask how many replicas have all that was written before it on the same connection."""

    key: str
    """Written first: the server waits for this connection's last write, and a job that it knows already writes nothing."""
    replicas: int
    timeout_s: float

    @property
    def commands(self) -> tuple[Command, Command]:
        """Both commands; the reply to the second is the number."""
        patience_ms = max(1, round(1000 * self.timeout_s))  # 0 would be for ever
        return ("SET", self.key, "", "PX", 1000), ("WAIT", self.replicas, patience_ms)


class ReplyLost(QueueUnavailable):
    """Some commands were sent, twice, and never answered. `replies` holds the answers to the ones before them."""

    def __init__(self, address: str, reason: str, replies: list[Any]) -> None:
        self.replies = replies
        super().__init__(f"Redis at {address} did not answer: {reason}")


class Link:
    """A few connections, shared by everything that asks. Cancelling a caller closes its connection, never reuses it."""

    def __init__(
        self,
        settings: ProducerSettings,
        *,
        connections: int | None = None,
        reply_timeout_s: float | None = None,
    ) -> None:
        count = connections or settings.connections
        self._turns = asyncio.Semaphore(count)
        self._reply_s = reply_timeout_s or settings.reply_timeout_s
        self._connect_s = settings.connect_timeout_s
        self._closed = False
        try:
            self._pool, self.address = _pool(settings)
        except (ValueError, TypeError, AttributeError):
            masked = re.sub(r"//.*@", "//***@", settings.redis_url)
            raise InvalidSettings(
                "redis_url",
                "redis://[user:password@]host:port/db, rediss://, unix:// or "
                "redis+sentinel://host:port,host:port/service",
                masked,
            ) from None

    async def close(self) -> None:
        """Close every connection. Callers still waiting get `ProducerClosed` or `QueueUnavailable`."""
        self._closed = True
        with contextlib.suppress(RedisError):
            await self._pool.disconnect()

    async def call(self, *commands: Command, together: bool = False, extra_s: float = 0.0) -> list[Any]:
        """The replies to `commands`, in their order, from one round trip. An error reply is returned, not raised.

        Args:
            together: all of them count on one connection only: where some were not answered, all are sent again.
            extra_s: seconds that the replies may take beyond the usual time.

        Raises:
            QueueUnavailable: nothing was sent.
            ReplyLost: something was sent, twice at most, and not all of it was answered.
        """
        replies: list[Any] = []
        before: list[Any] = []
        sent = False
        for last in (False, True):
            try:
                async with self._turn():
                    connection = await self._connect()
                    sent = True
                    await self._exchange(connection, commands[len(replies) :], replies, extra_s)
                return replies
            except QueueUnavailable as error:
                if not sent:
                    raise
                if last:
                    raise ReplyLost(self.address, str(error), max(before, replies, key=len)) from None
                if together:
                    before, replies = replies, []
        raise AssertionError("unreachable")

    async def ask(self, *command: Any) -> Any:
        """The reply to one command. Raises `QueueUnavailable`, also for an error reply."""
        return checked((await self.call(command))[0])

    async def run(self, script: Script, calls: Sequence[Command], wait: Wait | None = None) -> list[Any]:
        """The replies to several `calls` of one script, which is loaded where the server has forgotten it.

        `wait` adds its two replies, which hold for all of the calls.
        """
        if wait is not None:
            calls = (*calls, *wait.commands)
        together, extra_s = wait is not None, wait.timeout_s if wait is not None else 0.0
        try:
            replies = await self.call(*calls, together=together, extra_s=extra_s)
        except ReplyLost as lost:
            if not any(isinstance(reply, NoScriptError) for reply in lost.replies):
                raise
            replies = [*lost.replies, *([NoScriptError()] * (len(calls) - len(lost.replies)))]
        missing = [index for index, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if missing:
            await self.ask("SCRIPT", "LOAD", script.source)
            if together:
                return await self.call(*calls, together=True, extra_s=extra_s)
            for index, reply in zip(
                missing, await self.call(*(calls[index] for index in missing)), strict=True
            ):
                replies[index] = reply
        return replies

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(2 * (self._connect_s + self._reply_s)):
                await self._turns.acquire()
        except TimeoutError:
            raise QueueUnavailable(f"no connection to Redis at {self.address} became free") from None
        try:
            yield
        finally:
            self._turns.release()

    async def _connect(self) -> Any:
        if self._closed:
            raise ProducerClosed
        try:
            async with asyncio.timeout(self._connect_s):
                return await self._pool.get_connection()
        except (AuthenticationError, AuthorizationError):
            raise QueueUnavailable(f"Redis at {self.address} refused the user or the password") from None
        except (
            RedisError,
            OSError,
            RuntimeError,
        ) as error:  # RuntimeError: uvloop, where it is cut meanwhile
            raise QueueUnavailable(f"Redis at {self.address} cannot be reached: {_reason(error)}") from None

    async def _exchange(
        self, connection: Any, commands: Sequence[Command], replies: list[Any], extra_s: float
    ) -> None:
        healthy = False
        try:
            async with asyncio.timeout(self._reply_s + extra_s):
                try:
                    await connection.send_packed_command(connection.pack_commands(commands))
                except (
                    RuntimeError
                ) as error:  # uvloop's word for a connection that was cut while nobody looked
                    raise ConnectionError(str(error)) from error
                for _ in commands:
                    replies.append(await _read(connection))  # noqa: PERF401 - what came before an error counts
            healthy = not any(_moved(reply) for reply in replies)
        except (RedisError, OSError) as error:
            raise QueueUnavailable(_reason(error)) from None
        finally:
            if (
                not healthy
            ):  # after a cancellation unread replies may be on their way: nobody else may get them
                await connection.disconnect(nowait=True)
            await self._pool.release(connection)


def _moved(reply: Any) -> bool:
    """Whether another server may be the master by now: this one is a replica, or has lost its own."""
    lost_its_own = isinstance(reply, ResponseError) and str(reply).startswith("NOREPLICAS")
    return lost_its_own or isinstance(reply, ReadOnlyError)


async def _read(connection: Any) -> Any:
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error


def checked(reply: Any) -> Any:
    """`reply`, unless it is an error.

    Raises:
        QueueFull: the server's memory is used up.
        QueueUnavailable: any other error; its first word is kept, since the rest may quote what was sent.
    """
    if isinstance(reply, OutOfMemoryError):
        raise QueueFull("memory of the server", MEMORY_RETRY_AFTER)
    if isinstance(reply, Exception):
        words = str(reply).split()
        kind = words[0] if words and words[0].isupper() else type(reply).__name__
        raise QueueUnavailable(f"Redis refused: {kind}")
    return reply


def _reason(error: BaseException) -> str:
    """Why a connection failed, in the words of the operating system where it was that."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno is not None:  # below 0: the name's look-up failed
            return (os.strerror(cause.errno) if cause.errno > 0 else str(cause.strerror)).lower()
        cause = cause.__cause__ or cause.__context__
    late = isinstance(error, TimeoutError | RedisTimeout)
    return "no answer in time" if late else type(error).__name__


class _MasterPool(SentinelConnectionPool):  # type: ignore[misc]
    """Connections to whatever server the sentinels call the master when one is made."""

    async def disconnect(self, inuse_connections: bool = True) -> None:
        """Close these, and those to the sentinels: their client does not."""
        await super().disconnect(inuse_connections)
        for sentinel in self.sentinel_manager.sentinels:
            await sentinel.aclose()


def _pool(settings: ProducerSettings) -> tuple[Any, str]:
    """Connections to the server, or to whatever its sentinels call the master, and its address for messages."""
    options: dict[str, Any] = {
        "socket_timeout": None,  # time-outs are kept here: the client's swallow a cancellation now and then
        "socket_connect_timeout": settings.connect_timeout_s,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "health_check_interval": 0,
        "client_name": "laneway-producer",
        "decode_responses": False,
    }
    if (sentinels := read_sentinels(settings.redis_url)) is None:
        pool = ConnectionPool.from_url(settings.redis_url, **options)
        return pool, _address(pool.connection_kwargs)
    patience = settings.connect_timeout_s / (
        len(sentinels.addresses) + 1
    )  # whoever is dead is not the only one asked
    asked = {"socket_timeout": patience, "socket_connect_timeout": patience, "retry": Retry(NoBackoff(), 0)}
    manager = Sentinel(sentinels.addresses, sentinel_kwargs=asked)
    return _MasterPool(sentinels.service, manager, **sentinels.login, **options), sentinels.place


def _address(options: dict[str, Any]) -> str:
    if "path" in options:
        return str(options["path"])
    return f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"

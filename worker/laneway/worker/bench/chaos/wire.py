"""A wire that loses replies: the server does what it was asked, and the worker never hears of it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

_CHUNK = 2**20


class LossyWire:
    """Listens on a free port of 127.0.0.1 and forwards to `port`; `drop` loses the reply to the next script call."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._due = False
        self._server: asyncio.Server | None = None
        self._ends: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.dropped = 0
        """Replies lost so far."""

    @property
    def url(self) -> str:
        """What clients connect to."""
        assert self._server is not None
        return f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/0"

    def drop(self) -> None:
        """Pass the next script call on, and cut its connection in place of the reply.

        Does not add up while no call comes: a frozen worker would lose every reply of its first seconds.
        """
        self._due = True

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for end in tuple(self._ends):
            end.transport.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.transport.abort()
            return
        both = {writer, up_writer}
        self._ends |= both
        mute = asyncio.Event()
        for way in (self._requests(reader, up_writer, mute), self._replies(up_reader, writer, mute)):
            task = asyncio.create_task(self._until_cut(way, both))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _until_cut(self, way: Coroutine[Any, Any, None], both: set[asyncio.StreamWriter]) -> None:
        with suppress(OSError):
            await way
        for end in both:
            end.transport.abort()
        self._ends -= both

    async def _requests(
        self, reader: asyncio.StreamReader, up: asyncio.StreamWriter, mute: asyncio.Event
    ) -> None:
        while data := await reader.read(_CHUNK):
            if self._due and b"EVALSHA" in data:
                self._due = False
                mute.set()
            up.write(data)
            await up.drain()

    async def _replies(
        self, reader: asyncio.StreamReader, down: asyncio.StreamWriter, mute: asyncio.Event
    ) -> None:
        while data := await reader.read(_CHUNK):
            if mute.is_set():
                self.dropped += 1
                return
            down.write(data)
            await down.drain()

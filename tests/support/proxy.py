"""A TCP proxy between a client and its server that loses what it is told to lose."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

Request = Callable[[bytes], bool]


class Proxy:
    """Listens on a free port of 127.0.0.1 and forwards to `port`.

    async with Proxy(server.port) as proxy:
        proxy.drop_reply(lambda request: b"settle" in request)   # the server does it, the client never hears
    """

    def __init__(self, port: int) -> None:
        self._to = port
        self._server: asyncio.Server | None = None
        self._links: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._drops: list[Request] = []
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._refusing = False
        self.delay_s = 0.0
        """How late every reply is passed on."""
        self.dropped = 0
        """Replies dropped so far."""
        self.accepted = 0
        """Connections taken so far."""

    @property
    def url(self) -> str:
        """Where clients connect to."""
        assert self._server is not None
        return f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/0"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=2**24)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def drop_reply(self, to: Request, times: int = 1) -> None:
        """Forward the next `times` requests for which `to(bytes)` holds, then cut instead of relaying the reply."""
        self._drops += [to] * times

    def forgive(self) -> None:
        """Drop nothing any more."""
        self._drops.clear()

    def stall(self) -> None:
        """Relay nothing from now on, and close nothing: a half-open link."""
        self._flowing.clear()

    def flow(self) -> None:
        """Relay again."""
        self._flowing.set()

    def cut(self, refuse: bool = False) -> None:
        """Cut every connection; with `refuse`, new ones too, until `cut()` is called without."""
        self._refusing = refuse
        for link in tuple(self._links):
            link.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            writer.transport.abort()
            return
        self.accepted += 1
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._to, limit=2**24)
        except OSError:
            writer.transport.abort()
            return
        link = _Link(writer, up_writer)
        self._links |= {writer, up_writer}
        for task in (self._requests(reader, link), self._replies(up_reader, link)):
            running = asyncio.create_task(task)
            self._tasks.add(running)
            running.add_done_callback(self._tasks.discard)

    async def _requests(self, reader: asyncio.StreamReader, link: _Link) -> None:
        with suppress(OSError):
            while data := await reader.read(2**20):
                await self._flowing.wait()
                for drop in self._drops:
                    if drop(data):
                        self._drops.remove(drop)
                        link.mute = True
                        break
                link.up.write(data)
                await link.up.drain()
        link.abort()
        self._links -= {link.down, link.up}

    async def _replies(self, reader: asyncio.StreamReader, link: _Link) -> None:
        with suppress(OSError):
            while data := await reader.read(2**20):
                if link.mute:
                    self.dropped += 1
                    break
                await self._flowing.wait()
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                link.down.write(data)
                await link.down.drain()
        link.abort()


class _Link:
    def __init__(self, down: asyncio.StreamWriter, up: asyncio.StreamWriter) -> None:
        self.down = down
        self.up = up
        self.mute = False

    def abort(self) -> None:
        """Close both ways at once."""
        self.down.transport.abort()
        self.up.transport.abort()

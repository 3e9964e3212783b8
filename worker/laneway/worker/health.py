"""/healthz, /readyz and /metrics: a few lines of HTTP for probes and scrapers.

`/healthz` is 200 while the worker's loop goes round, whether or not the server or the engine is there: a restart
cures neither. `/readyz` is 200 while jobs are claimed. Both name the phase.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType

import msgspec

from laneway.worker.errors import SettingsError

ASK_S = 5.0
"""Patience with a client that is slow to ask, and with an answer."""
MOST_HEAD = 8192  # bytes of a request's head

Page = Callable[[], Awaitable[tuple[int, str, bytes]]]
"""Makes an answer: status, content type, body."""
_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


class HealthServer:
    """Serves `pages`, by path, from `async with`."""

    def __init__(self, host: str, port: int, pages: dict[str, Page]) -> None:
        """`port` 0: any free one."""
        self._host = host
        self._port = port
        self._pages = pages
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """The port that is listened on."""
        assert self._server is not None  # noqa: S101 - only inside `async with`
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def __aenter__(self) -> HealthServer:
        try:
            self._server = await asyncio.start_server(self._serve, self._host, self._port, limit=MOST_HEAD)
        except OSError as error:
            raise SettingsError(
                f"health_port: expected a free port on {self._host}, got {self._port} ({error.strerror or error})"
            ) from None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(ASK_S):
                head = await reader.readuntil(b"\r\n\r\n")
                method, _, rest = head.partition(b" ")
                status, kind, body = await self._answer(method, rest.split(b" ")[0].split(b"?")[0])
                writer.write(
                    f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\n"
                    f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
                )
                writer.write(body if method != b"HEAD" else b"")
                await writer.drain()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    async def _answer(self, method: bytes, path: bytes) -> tuple[int, str, bytes]:
        page = self._pages.get(path.decode(errors="replace"))
        if page is None:
            return 404, "text/plain", b"there are /healthz, /readyz and /metrics\n"
        if method not in (b"GET", b"HEAD"):
            return 405, "text/plain", b"only GET\n"
        return await page()


def as_json(status: int, **fields: object) -> tuple[int, str, bytes]:
    """A JSON answer."""
    return status, "application/json", msgspec.json.encode(fields) + b"\n"

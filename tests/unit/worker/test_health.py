"""Probes and scrapes."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from laneway.worker.errors import SettingsError
from laneway.worker.health import HealthServer, as_json


async def ask(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def fine() -> tuple[int, str, bytes]:
    return as_json(200, phase="ready")


async def test_pages_are_served_by_path() -> None:
    """GET answers with the page, HEAD with its head; another path says what there is."""
    async with HealthServer("127.0.0.1", 0, {"/readyz": fine}) as server:
        answer = await ask(server.port, b"GET /readyz?x=1 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert answer.endswith(b'\r\n\r\n{"phase":"ready"}\n')
        assert (await ask(server.port, b"HEAD /readyz HTTP/1.1\r\n\r\n")).endswith(b"\r\n\r\n")
        assert b" 404 " in await ask(server.port, b"GET / HTTP/1.1\r\n\r\n")
        assert b" 405 " in await ask(server.port, b"POST /readyz HTTP/1.1\r\n\r\n")


async def test_nonsense_harms_nobody() -> None:
    """A client that sends no HTTP, too much or nothing is hung up on; the next one is served."""
    async with HealthServer("127.0.0.1", 0, {"/readyz": fine}) as server:
        for nonsense in (b"\xff\xfe\r\n\r\n", b"x" * 100_000, b"GET"):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(nonsense)
            writer.write_eof()
            with suppress(ConnectionResetError):
                await reader.read()
            writer.close()
        assert b" 200 " in await ask(server.port, b"GET /readyz HTTP/1.1\r\n\r\n")


async def test_a_taken_port_is_a_clear_error() -> None:
    """The option, what it must be and what was given, in one sentence."""
    async with HealthServer("127.0.0.1", 0, {}) as first:
        with pytest.raises(
            SettingsError, match=rf"health_port: expected a free port on 127.0.0.1, got {first.port}"
        ):
            async with HealthServer("127.0.0.1", first.port, {}):
                pass

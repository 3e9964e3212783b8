"""A worker as a process of its own, to be killed, frozen and watched."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

READY_S = 30.0


class WorkerProcess:
    """`python -m laneway.worker` with the fake engine, from `async with`. Whatever happens, it is gone afterwards."""

    def __init__(self, url: str, namespace: str, log: Path, **options: object) -> None:
        """`options` are settings, such as `lease_s=2`; engine options begin with `engine.`."""
        given = {
            "redis_url": url,
            "namespace": namespace,
            "engine": "fake",
            "health_port": 0,
            "log_format": "json",
            "log_level": "debug",
            **options,
        }
        self.log_file = log
        self._command = [sys.executable, "-m", "laneway.worker"]
        self._command += [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process' id."""
        assert self._process is not None
        return self._process.pid

    async def __aenter__(self) -> Self:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("LANEWAY_")}
        with self.log_file.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: ASYNC220 - a fork is short
                self._command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environ
            )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def send(self, signum: signal.Signals) -> None:
        """Send a signal."""
        os.kill(self.pid, signum)

    async def exit_code(self, timeout: float = 20.0) -> int:
        """The exit code, once the process is gone."""
        assert self._process is not None
        await self._until(lambda: self._process is not None and self._process.poll() is not None, timeout)
        code: int = self._process.returncode
        return code

    async def ready(self) -> Self:
        """Return when the worker claims jobs."""
        await self.says("phase.changed", phase="ready", timeout=READY_S)
        return self

    async def says(
        self, event: str, timeout: float = 20.0, times: int = 1, **fields: object
    ) -> list[dict[str, Any]]:
        """The log lines of that event and those fields, once there are `times` of them."""

        def matching() -> list[dict[str, Any]]:
            return [
                line
                for line in self.lines()
                if line.get("event") == event
                and all(line.get(name) == value for name, value in fields.items())
            ]

        await self._until(lambda: len(matching()) >= times, timeout, f"{times} x {event} {fields}")
        return matching()

    async def page(self, path: str) -> tuple[int, str]:
        """Status and body of a page of the health server."""
        port = (await self.says("health.listening"))[0]["port"]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
        head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
        writer.close()
        await writer.wait_closed()
        return int(head.split()[1]), body

    async def shows(self, *lines: str, timeout: float = 10.0) -> None:
        """Return once all `lines` stand in its metrics."""
        async with asyncio.timeout(timeout):
            while not set(lines) <= set((await self.page("/metrics"))[1].splitlines()):  # noqa: ASYNC110 - a scrape is a look
                await asyncio.sleep(0.02)

    def lines(self) -> list[dict[str, Any]]:
        """Everything it has logged so far."""
        lines = []
        for line in self.text().splitlines():
            try:
                lines.append(json.loads(line))
            except ValueError:
                lines.append({"text": line})
        return lines

    def text(self) -> str:
        """The same, as it stands."""
        return self.log_file.read_text(encoding="utf-8", errors="replace")

    async def _until(
        self, holds: Callable[[], bool], timeout: float, what: str = "the end of the process"
    ) -> None:
        try:
            async with asyncio.timeout(timeout):
                while not holds():  # noqa: ASYNC110 - another process sets no event here
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"no {what} within {timeout:g} s; the log:\n{self.text()[-4000:]}") from None


MakeWorker = Callable[..., WorkerProcess]
"""Makes a worker from a name for its log and its options."""

"""The worker process of the demo: started, watched through its log, and ended."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from laneway.schemas.errors import LanewayError
from laneway.worker.child import dying_with_us

KEPT_VARIABLES = ("LANEWAY_CACHE",)
"""Of our own variables, those that reach the worker: it is told the rest."""
_LINE_LIMIT = 1 << 20  # engines log whole configurations in one line
_KEPT_LINES = 15

Told = Callable[[str], None]


class WorkerFailed(LanewayError):
    """The worker ended before it was asked to."""


class WorkerProcess:
    """One `laneway worker` in a session of its own."""

    def __init__(self, options: list[str], log: Path, told: Told) -> None:
        """Nothing runs yet.

        Args:
            options: as on the command line of `laneway worker`.
            log: receives all that the worker and its engine write.
            told: hears, in a few words, what the start is at.
        """
        self._options = [*options, "--log-format=json", "--health-port=off"]
        self._log = log
        self._told = told
        self._ready = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._reason = ""
        self._last: deque[str] = deque(maxlen=_KEPT_LINES)

    async def start(self, timeout: float) -> None:
        """Return when the worker takes jobs.

        Raises:
            WorkerFailed: it ended, with its own reason, or needed more than `timeout` seconds.
        """
        self._process = await asyncio.create_subprocess_exec(
            *dying_with_us([sys.executable, "-m", "laneway.worker", *self._options]),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches us, and we end the worker in order
            env=_environment(os.environ),
            limit=_LINE_LIMIT,
        )
        self._reader = asyncio.create_task(self._read(self._process.stdout))
        ready = asyncio.create_task(self._ready.wait())
        try:
            await asyncio.wait({ready, self._reader}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if not self._ready.is_set():
                late = not self._reader.done()
                raise WorkerFailed(
                    f"the worker was not ready after {timeout:.0f} s; its log: {self._log}"
                    if late
                    else await self._epitaph()
                )
        finally:
            ready.cancel()

    async def ended(self) -> None:
        """Wait for the worker to end by itself, which it should not.

        Raises:
            WorkerFailed: always, with its reason.
        """
        if self._reader is not None:
            await asyncio.shield(self._reader)
        raise WorkerFailed(await self._epitaph())

    async def stop(self, timeout: float = 30.0) -> None:
        """Drain the worker; after `timeout` seconds, or if anything of it is left, kill its whole session."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(timeout):
                await process.wait()
        except TimeoutError:
            pass
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            if self._reader is not None:
                await self._reader

    async def _epitaph(self) -> str:
        code = await self._process.wait() if self._process else None
        # The worker's own reason is one sentence. Without it, the last lines must do.
        reason = self._reason or "\n".join(["", *self._last])
        return f"the worker ended with exit code {code}: {reason}"

    async def _read(self, stream: asyncio.StreamReader | None) -> None:
        assert stream is not None  # noqa: S101 - the process was given a pipe
        with self._log.open("ab", buffering=0) as log:
            while True:
                try:
                    line = await stream.readuntil(b"\n")
                except asyncio.IncompleteReadError as error:
                    line = error.partial
                except asyncio.LimitOverrunError as error:
                    line = await stream.read(error.consumed)
                if not line:
                    return
                log.write(line)
                self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            fact = msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.DecodeError:
            self._last.append(line.decode(errors="replace").rstrip())
            return
        event = fact.get("event")
        if event == "phase.changed":
            self._told(str(fact.get("phase")))
            if fact.get("phase") == "ready":
                self._ready.set()
        elif event == "engine.progress":
            self._told(f"engine: {fact.get('step')}")
        elif event == "worker.failed":
            self._reason = str(fact.get("reason") or fact.get("error") or "")


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith("LANEWAY_") or name in KEPT_VARIABLES
    }

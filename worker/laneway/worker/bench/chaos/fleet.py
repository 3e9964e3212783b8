"""Worker processes: started, killed, frozen, and started anew whenever one ends."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from laneway.worker.bench.chaos.audit import Line, Silence
from laneway.worker.bench.chaos.plan import LEASE_S, STEP_S
from laneway.worker.child import dying_with_us
from laneway.worker.errors import EngineStartFailed

_POLL_S = 0.05
_STOP_S = 20.0
SEATS = 32
ENTRY = ("laneway.worker",)
"""The module that runs a worker."""

Options = Mapping[str, object]
"""Settings of a worker as on its command line, without the dashes."""

FAKE: Options = {
    "engine": "fake",
    "lease-s": LEASE_S,
    "engine.seats": SEATS,
    "engine.base-s": STEP_S,
}


class Worker:
    """One place in the fleet, and the process that fills it now."""

    def __init__(self, number: int, url: str, folder: Path, options: Options, entry: Sequence[str]) -> None:
        """`entry` are the words that name the program: a module, and what it wants first."""
        self.number = number
        self.log = Path()
        self._folder = folder
        self._starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._command = [
            sys.executable,
            "-m",
            *entry,
            f"--redis-url={url}",
            *(f"--{name}={value}" for name, value in options.items()),
            "--health-port=off",
            "--log-format=json",
            "--log-level=debug",
        ]

    @property
    def pid(self) -> int:
        """Of the process that runs now; 0 before the first."""
        return self._process.pid if self._process is not None else 0

    @property
    def process_name(self) -> str:
        """Name of the process that runs now: that of its log."""
        return self.log.stem

    def start(self) -> None:
        """Start a process, with a log of its own."""
        self._starts += 1
        self.log = self._folder / f"worker-{self.number}.{self._starts}.log"
        environ = {
            name: value
            for name, value in os.environ.items()
            if name == "LANEWAY_CACHE" or not name.startswith("LANEWAY_")
        }
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                dying_with_us(self._command, signal.SIGKILL),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=environ,
            )

    def exit_code(self) -> int | None:
        """How the process ended; None while it runs."""
        return self._process.poll() if self._process is not None else None

    def send(self, signum: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        if self._process is not None:
            self._process.send_signal(signum)

    def wait(self, timeout: float) -> None:
        """Wait for the end. Raises `subprocess.TimeoutExpired`."""
        if self._process is not None:
            self._process.wait(timeout)

    def is_ready(self) -> bool:
        """Whether it claims jobs, by its log."""
        phase = self.log.read_bytes().rpartition(b'"phase": "')[2]
        return self.exit_code() is None and phase.startswith(b'ready"')


class Fleet:
    """All workers. `watch` fills the place of each that ends."""

    def __init__(
        self,
        urls: Sequence[str],
        folder: Path,
        options: Options = FAKE,
        entry: Sequence[str] = ENTRY,
        ready_s: float = 60.0,
    ) -> None:
        """One worker for each of `urls`, its server as it sees it, each ready within `ready_s`."""
        self.workers = [Worker(number, url, folder, options, entry) for number, url in enumerate(urls)]
        self.silences: list[Silence] = []
        """Workers killed and frozen."""
        self.exits: Counter[int] = Counter()
        """How workers ended that were not killed."""
        self._folder = folder
        self._ready_s = ready_s
        self._killed: set[str] = set()

    async def start(self) -> None:
        """Start all; return when all claim jobs. Raises `EngineStartFailed`."""
        for worker in self.workers:
            worker.start()
        await self.wait_until_ready()

    async def wait_until_ready(self) -> None:
        """Return when all claim jobs. Raises `EngineStartFailed`."""
        give_up = time.monotonic() + self._ready_s
        while not all(worker.is_ready() for worker in self.workers):
            if time.monotonic() > give_up:
                raise EngineStartFailed(
                    f"the workers were not ready after {self._ready_s:g} s; see {self._folder}"
                )
            await asyncio.sleep(_POLL_S)

    def kill(self, number: int) -> None:
        """SIGKILL a worker, frozen or not."""
        worker = self.workers[number]
        if worker.exit_code() is None:
            self._killed.add(worker.process_name)
            worker.send(signal.SIGKILL)
            self.silences.append(Silence(process=worker.process_name, at=time.time()))

    async def freeze(self, number: int, seconds: float) -> None:
        """SIGSTOP a worker for so long."""
        worker = self.workers[number]
        if worker.exit_code() is not None:
            return
        self.silences.append(Silence(process=worker.process_name, at=time.time()))
        worker.send(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            worker.send(signal.SIGCONT)

    async def watch(self) -> None:
        """Start a new process wherever one has ended, for ever."""
        while True:
            for worker in self.workers:
                if self._note_end(worker):
                    worker.start()
            await asyncio.sleep(_POLL_S * random.uniform(0.5, 1.5))

    def _note_end(self, worker: Worker) -> bool:
        code = worker.exit_code()
        if code is not None and worker.process_name not in self._killed:
            self.exits[code] += 1
        return code is not None

    def stop(self) -> None:
        """Drain all workers; kill what is left of them."""
        for worker in self.workers:
            worker.send(signal.SIGCONT)
            worker.send(signal.SIGTERM)
        give_up = time.monotonic() + _STOP_S
        for worker in self.workers:
            try:
                worker.wait(max(0.1, give_up - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.send(signal.SIGKILL)
                worker.wait(_STOP_S)
            self._note_end(worker)

    def lines(self) -> list[Line]:
        """What all processes logged of jobs. A line cut off by a kill is left out."""
        return [line for log in sorted(self._folder.glob("worker-*.log")) for line in _read(log)]


class _Logged(msgspec.Struct):
    event: str
    timestamp: datetime
    job_id: str = ""
    attempt: int = 0
    losses: int = 0


_DECODER = msgspec.json.Decoder(_Logged)


def _read(log: Path) -> list[Line]:
    lines = []
    for text in log.read_bytes().splitlines():
        try:
            logged = _DECODER.decode(text)
        except msgspec.DecodeError:
            continue
        if logged.job_id:
            at = logged.timestamp.timestamp()
            lines.append(
                Line(
                    process=log.stem,
                    at=at,
                    event=logged.event,
                    job_id=logged.job_id,
                    attempt=logged.attempt,
                    losses=logged.losses,
                )
            )
    return lines

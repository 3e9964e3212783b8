"""The last resort: a process that should be gone by a certain time, and is not, ends itself by force."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path

EXIT_S = 10.0
"""Patience with the interpreter once all work is over."""


class Watchdog:
    """Ends the process, and every child of it, when time is up. It is a thread, so a blocked loop cannot stop it."""

    EXIT = 6

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None

    def set(self, seconds: float) -> None:
        """Have the process end in `seconds`, instead of whenever was said before."""
        self.stop()
        self._timer = threading.Timer(seconds, end_by_force)
        self._timer.daemon = True
        self._timer.start()

    def stop(self) -> None:
        """Never mind."""
        if self._timer is not None:
            self._timer.cancel()

    def __enter__(self) -> Watchdog:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def exit_within(seconds: float, code: int) -> None:
    """Have the process gone in `seconds` with `code`, whatever its threads still wait for. For the very last moment."""
    timer = threading.Timer(seconds, end_by_force, [code])
    timer.daemon = True
    timer.start()


def end_by_force(code: int = Watchdog.EXIT) -> None:
    """Kill the children and leave at once, without any clean-up."""
    for child in children():
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    os._exit(code)


def children() -> list[int]:
    """Processes that this one has started, and theirs, as far as the system tells."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found: list[int] = []
    level = {os.getpid()}
    while level:
        level = {pid for pid, parent in parents.items() if parent in level}
        found += level
    return found

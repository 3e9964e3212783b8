"""What a long command shows: a moving line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Screen:
    """Writes to standard output, or nowhere when `quiet`."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._moving = not quiet and sys.stdout.isatty()
        self._status: Any = None
        self._begin = time.monotonic()
        self._head = ""
        self._last = ""

    def say(self, text: str) -> None:
        """One line that stays."""
        self.write(f"{text}\n")

    def write(self, text: str) -> None:
        """Text as it comes, without a line's end. Control characters are left out: a model wrote it."""
        if not self._quiet:
            sys.stdout.write("".join(char for char in text if char.isprintable() or char in "\n\t"))
            sys.stdout.flush()

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Show that something takes its time; `step` tells where it is."""
        self._begin, self._head, self._last = time.monotonic(), text, ""
        if self._moving:
            from rich.console import Console

            self._status = Console(highlight=False).status(text)
            self._status.start()
        else:
            self.say(f"{text}...")
        try:
            yield
        finally:
            if self._status is not None:
                self._status.stop()
                self._status = None

    def step(self, text: str, *, plain: bool = True) -> None:
        """Where the wait is; off a terminal it is a line with the seconds so far, if `plain`."""
        if text == self._last:
            return
        self._last = text
        if self._status is not None:
            self._status.update(f"{self._head}: {text}" if plain else text)
        elif plain:
            self.say(f"  {time.monotonic() - self._begin:5.1f} s  {text}")

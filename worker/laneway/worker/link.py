"""Whether the server answers: told once when it goes away and once when it is back, however many calls fail."""

from __future__ import annotations

import time
from collections.abc import Awaitable
from typing import TypeVar

from laneway.worker.errors import QueueUnavailable
from laneway.worker.telemetry import Telemetry

T = TypeVar("T")

LONGEST_PAUSE_S = 0.5
"""Longest pause between two tries at a server that does not answer: what its return may go unnoticed."""


class Link:
    """Passes calls to the queue through and watches how they end."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._lost_at: float | None = None

    @property
    def up(self) -> bool:
        """Whether the last call was answered."""
        return self._lost_at is None

    async def __call__(self, call: Awaitable[T]) -> T:
        """The answer to `call`. Raises what it raises; `QueueUnavailable` is noted."""
        asked_at = time.monotonic()
        try:
            answer = await call
        except QueueUnavailable as error:
            if self._lost_at is None:
                self._lost_at = time.monotonic()
                self._telemetry.tell("queue.unavailable", reason=str(error))
            raise
        # An answer to what was asked before the server went away is no news of its return.
        if self._lost_at is not None and asked_at > self._lost_at:
            self._telemetry.tell("queue.recovered", seconds=time.monotonic() - self._lost_at)
            self._lost_at = None
        return answer


class Pause:
    """Growing pauses between tries: 50 ms, doubled each time, at most `LONGEST_PAUSE_S`."""

    def __init__(self) -> None:
        self._tries = 0

    def next(self) -> float:
        """Seconds to wait before the next try."""
        self._tries += 1
        return min(LONGEST_PAUSE_S, 0.05 * float(2 ** min(self._tries - 1, 10)))

    def reset(self) -> None:
        """A try succeeded."""
        self._tries = 0

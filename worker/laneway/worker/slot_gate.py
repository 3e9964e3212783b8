"""Runs wait here until their adapter may be in the engine: one distinct adapter too many would end it."""

from __future__ import annotations

import asyncio
from collections import deque

from laneway.worker.policy.slots import Slots, cancel_want, fits, release, take, want


class SlotGate:
    """Lets runs in by `policy.slots`, in the order in which they came; the one that has waited longest is never passed
    over for good, since the least used adapter is drained for it."""

    def __init__(self, most: int) -> None:
        """`most`: the engine's `max_loras`."""
        self._slots = Slots(most=most)
        self._waiting: deque[tuple[str, asyncio.Future[None]]] = deque()

    @property
    def in_use(self) -> frozenset[str]:
        """Adapters of the runs that are in."""
        return frozenset(self._slots.in_flight)

    async def enter(self, adapter: str | None) -> None:
        """Return when a run with this adapter is in; `leave` must follow. Cancelling it takes the run out of the line."""
        if fits(self._slots, adapter):
            take(self._slots, adapter)
            return
        assert adapter is not None  # noqa: S101 - the base model always fits
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((adapter, turn))
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(adapter)  # let in at the very moment it gave up
            else:
                self._waiting.remove((adapter, turn))
                self._forget(adapter)
            raise

    def leave(self, adapter: str | None) -> None:
        """A run with this adapter is out."""
        release(self._slots, adapter)
        self._admit()

    def _admit(self) -> None:
        for entry in list(self._waiting):
            adapter, turn = entry
            if turn.done():
                continue
            if fits(self._slots, adapter):
                take(self._slots, adapter)
                self._waiting.remove(entry)
                turn.set_result(None)
            else:
                want(self._slots, adapter)

    def _forget(self, adapter: str) -> None:
        if self._slots.wanted == adapter and all(other != adapter for other, _ in self._waiting):
            cancel_want(self._slots)
        self._admit()

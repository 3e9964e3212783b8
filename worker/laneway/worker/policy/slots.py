"""Which adapters may be in the engine: |in flight or pinned| never exceeds the engine's slots.

vLLM dies when a batch names more adapters than it has slots beside pinned ones, and lets a busy adapter keep its
slot for ever. So the rule is checked at every admission, and a job whose adapter has no slot can have the least used
one *drained*: it admits nothing more, and the slot it leaves goes to whoever asked.
"""

from __future__ import annotations

from msgspec import Struct, field

COLD_WAIT_S = 2.0
"""A throughput job waits so long for a slot before another adapter is drained for it. About a fifth of a batch job's
residence on an H200: less would trade adapters all the time, more would add to a wait of one residence."""


class Slots(Struct, kw_only=True):
    """The engine's adapter slots."""

    most: int
    """`max_loras`; 0: adapters are off."""
    in_flight: dict[str, int] = field(default_factory=dict)
    """Jobs in the engine per adapter."""
    pinned: set[str] = field(default_factory=set)
    draining: str | None = None
    """The adapter that admits nothing more."""
    wanted: str | None = None
    """The adapter that gets the slot then."""

    @property
    def occupied(self) -> int:
        """|in flight or pinned|."""
        return len(self.in_flight.keys() | self.pinned)


def fits(slots: Slots, adapter: str | None) -> bool:
    """Whether a job with this adapter may go in now. The base model needs no slot."""
    if adapter is None:
        return True
    if adapter == slots.draining:
        return False
    if adapter in slots.in_flight or adapter in slots.pinned:
        return True
    kept = slots.wanted is not None and slots.wanted != adapter
    return slots.occupied + kept < slots.most


def want(slots: Slots, adapter: str) -> None:
    """Free a slot for `adapter` by draining the adapter with the fewest jobs. One at a time: others ask again."""
    if slots.wanted is not None:
        return
    idle_first = [name for name in slots.in_flight if name not in slots.pinned]
    if idle_first:
        slots.draining = min(idle_first, key=lambda name: (slots.in_flight[name], name))
        slots.wanted = adapter


def cancel_want(slots: Slots) -> None:
    """Nobody asks for the wanted adapter any more."""
    slots.draining = slots.wanted = None


def take(slots: Slots, adapter: str | None) -> None:
    """A job with this adapter goes in.

    Raises:
        ValueError: that would break the rule.
    """
    if adapter is None:
        return
    if adapter not in slots.in_flight and adapter not in slots.pinned and slots.occupied >= slots.most:
        raise ValueError(f"adapter {adapter}: expected a free slot among {slots.most}, got none")
    slots.in_flight[adapter] = slots.in_flight.get(adapter, 0) + 1
    if adapter == slots.wanted:
        cancel_want(slots)


def release(slots: Slots, adapter: str | None) -> None:
    """A job with this adapter has left the engine."""
    if adapter is None or adapter not in slots.in_flight:
        return
    slots.in_flight[adapter] -= 1
    if slots.in_flight[adapter] == 0:
        del slots.in_flight[adapter]

"""The adapters that jobs may name, and how many of them are in the engine at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from laneway.schemas.errors import nearest
from laneway.schemas.ids import AdapterId
from laneway.worker.errors import JobRefused
from laneway.worker.ports import Adapter
from laneway.worker.slot_gate import SlotGate


class AdapterShelf:
    """Lends adapters to attempts: never more than `slots` distinct ones at a time, each loaded before its first use.

    One more distinct adapter than the engine has slots for kills the engine: attempts wait here instead, before they
    count as inside it, and none for ever.
    """

    def __init__(
        self,
        known: Mapping[AdapterId, Adapter],
        slots: Callable[[], int],
        load: Callable[[Adapter], Awaitable[None]],
    ) -> None:
        """`slots` is asked with the first job: it is known once the engine is up."""
        self._known = known
        self._slots = slots
        self._load = load
        self._gate: SlotGate | None = None
        self._loading: dict[AdapterId, asyncio.Lock] = {}
        self._loaded: set[AdapterId] = set()

    @property
    def in_use(self) -> tuple[AdapterId, ...]:
        """Adapters of the attempts that run now."""
        return tuple(AdapterId(name) for name in self._gate.in_use) if self._gate else ()

    def check(self, lora: AdapterId | None) -> None:
        """Refuse at once what would be refused once its turn has come. Raises as `lend` does."""
        if lora is not None:
            self._find(lora)

    @asynccontextmanager
    async def lend(self, lora: AdapterId | None) -> AsyncIterator[Adapter | None]:
        """The adapter `lora`, ready to be used until the block ends.

        Raises:
            JobRefused: no such adapter, adapters are off, or the engine cannot load it.
        """
        if lora is None:
            yield None
            return
        adapter = self._find(lora)
        gate = self._gate = self._gate or SlotGate(self._slots())
        await gate.enter(lora)
        try:
            await self._make_ready(adapter)
            yield adapter
        finally:
            gate.leave(lora)
            if lora not in gate.in_use:
                # The engine may now evict it for another: the next use loads it again.
                self._loaded.discard(lora)

    def _find(self, lora: AdapterId) -> Adapter:
        adapter = self._known.get(lora)
        if adapter is None:
            hint = nearest(lora, self._known)
            raise JobRefused("unknown_adapter", f"lora: this model has no adapter of that name{hint}", "lora")
        if self._slots() < 1:
            raise JobRefused(
                "adapters_off", "lora: expected nothing, since this worker runs without adapters", "lora"
            )
        return adapter

    async def _make_ready(self, adapter: Adapter) -> None:
        async with self._loading.setdefault(adapter.id, asyncio.Lock()):
            if adapter.id not in self._loaded:
                await self._load(adapter)
                self._loaded.add(adapter.id)

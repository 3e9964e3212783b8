"""The adapters that vLLM holds, each loaded by the call whose failure is contained, never lazily inside a step."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import ModuleType
from typing import Any

from laneway.schemas.ids import AdapterId
from laneway.worker.engine.adapter_files import check_adapter_files
from laneway.worker.engine.tensors import Shapes
from laneway.worker.engine.vllm_prepare import first_line
from laneway.worker.errors import EngineDied, JobRefused
from laneway.worker.ports import Adapter
from laneway.worker.slot_gate import SlotGate


class VllmAdapters:
    """Knows which adapters may be used, holds at most `held` of them in the engine, and gives each its own number.

    vLLM drops the adapter used least recently when its host cache is full, even one that runs, and would then read it
    from disk inside a step. So room is made here, before each load, among adapters that nothing uses.
    """

    def __init__(
        self,
        llm: Any,
        native: ModuleType,
        *,
        slots: int,
        held: int,
        max_rank: int,
        model: Shapes,
        call: Callable[[Awaitable[Any]], Awaitable[Any]],
    ) -> None:
        """`call` awaits a call into the engine, and raises `EngineDied` when the engine dies meanwhile."""
        self._llm = llm
        self._native = native
        self._held = held
        self._max_rank = max_rank
        self._model = model
        self._call = call
        self._known: dict[AdapterId, Adapter] = {}
        self._loaded: OrderedDict[Adapter, Any] = OrderedDict()
        self._numbers = 0
        self._lock = asyncio.Lock()
        self.gate = SlotGate(slots)

    async def load(self, adapter: Adapter) -> None:
        """Check the adapter's files and load it. Raises `JobRefused`; the engine is unharmed."""
        await self.gate.enter(_version(adapter))
        try:
            await self._hold(adapter)
        finally:
            self.gate.leave(_version(adapter))
        self._known[adapter.id] = adapter

    async def enter(self, lora: AdapterId) -> tuple[Adapter, Any]:
        """The adapter and vLLM's request for it, loaded and in a slot until `leave`."""
        if (adapter := self._known.get(lora)) is None:
            raise JobRefused("unknown_adapter", "lora: the engine has no adapter of that name", "lora")
        await self.gate.enter(_version(adapter))
        try:
            return adapter, await self._hold(adapter)
        except BaseException:
            self.leave(adapter)
            raise

    def leave(self, adapter: Adapter) -> None:
        """The run is out of the engine."""
        self.gate.leave(_version(adapter))

    async def _hold(self, adapter: Adapter) -> Any:
        if (request := self._loaded.get(adapter)) is not None:
            self._loaded.move_to_end(adapter)
            return request
        async with self._lock:
            if adapter not in self._loaded:
                await asyncio.to_thread(check_adapter_files, adapter, self._max_rank, self._model)
                await self._make_room()
                self._loaded[adapter] = await self._add(adapter)
            return self._loaded[adapter]

    async def _make_room(self) -> None:
        idle = [adapter for adapter in self._loaded if _version(adapter) not in self.gate.in_use]
        for adapter in idle[: max(0, len(self._loaded) - self._held + 1)]:
            request = self._loaded.pop(adapter)
            await self._call(self._llm.remove_lora(request.lora_int_id))

    async def _add(self, adapter: Adapter) -> Any:
        self._numbers += 1
        name = f"{adapter.id}@{adapter.digest}" if adapter.digest else f"{adapter.id}@{self._numbers}"
        request = self._native.lora_request(name, self._numbers, adapter.path)
        try:
            added = await self._call(self._llm.add_lora(request))
        except EngineDied:
            raise
        except Exception as error:
            with suppress(Exception):  # it may be half loaded
                await self._call(self._llm.remove_lora(request.lora_int_id))
            raise JobRefused(
                "bad_adapter",
                f"lora: the engine cannot load adapter {adapter.id}: {first_line(error)}",
                "lora",
            ) from None
        if not added:
            raise JobRefused("bad_adapter", f"lora: the engine did not take adapter {adapter.id}", "lora")
        return request


def _version(adapter: Adapter) -> str:
    """What the engine takes for one adapter: the same name with new content is another one."""
    return f"{adapter.id}@{adapter.digest}@{adapter.path}"

"""A page of memory between the worker and the scheduler in the engine process: what it is told, and what it did.

Every value is eight bytes at a fixed place, read and written whole, so neither side waits for the other.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from pathlib import Path
from typing import Self

from msgspec import Struct, structs

from laneway.worker.policy.steps import LINGER_S

VARIABLE = "LANEWAY_ENGINE_PAGE"
"""Path of the page, in the engine process' environment alone."""
_SIZE = 4096
_HALF = 2048


class Controls(Struct, frozen=True, kw_only=True):
    """What the scheduler is told. All numbers, so that the page can hold them."""

    enabled: float = 1.0
    """0: the engine's own scheduling."""
    tpot_s: float = 0.05
    ttft_s: float = 0.2
    """From a latency job's arrival in the engine to its first token."""
    fixed_tokens: float = 0.0
    """All tokens of every step while a latency job is in the engine; 0: by the cost model."""
    pause: float = 1.0
    """Throughput decodes sit out: 0 never, 1 when a first token would be late, 2 for every latency prompt."""
    lean: float = 1.0
    """Throughput prompts sit out: 1 when a first token would be late soon, 2 for every latency prompt."""
    linger_s: float = LINGER_S
    """Steps stay short for so long after the last latency job."""
    floor: float = 0.0
    """Fewest prompt tokens of a step; 0: by the device."""
    late: float = 1.0
    """1: the next step is put together shortly before the running one ends; 0: at once."""


class Report(Struct, frozen=True, kw_only=True):
    """What the scheduler did since its start."""

    alive: float = 0.0
    """1: it is in charge; -1: it gave up, and the engine's own scheduling goes on; 0: the engine never took it up."""
    steps: float = 0.0
    reading: float = 0.0
    """Steps with a latency job in the engine."""
    lean: float = 0.0
    paused: float = 0.0
    fruitless: float = 0.0
    """Steps that somebody sat out and no latency prompt used."""
    base_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    kv_s: float = 0.0
    error: float = 0.0
    """Mean absolute relative error of the cost model."""
    tokens: float = 0.0
    """Budget of the last step."""
    lead_s: float = 0.0
    """How long before the running step's end the next one is put together."""
    dry: float = 0.0
    """Steps for which that was too late: the device had run dry."""


class Page:
    """The page, from either side."""

    def __init__(self, path: Path, memory: mmap.mmap) -> None:
        self.path = path
        self._memory = memory

    @classmethod
    def create(cls, controls: Controls) -> Self:
        """A new page."""
        number, path = tempfile.mkstemp(prefix="laneway-page-")
        os.ftruncate(number, _SIZE)
        page = cls(Path(path), _map(number))
        page.control(controls)
        page.report(Report())
        return page

    @classmethod
    def offered(cls) -> Self | None:
        """The page that the worker made for this engine process, if there is one."""
        path = os.environ.get(VARIABLE)
        if not path:
            return None
        return cls(Path(path), _map(os.open(path, os.O_RDWR)))

    def control(self, controls: Controls) -> None:
        """Tell the scheduler."""
        _CONTROLS.pack_into(self._memory, 0, *structs.astuple(controls))

    def controls(self) -> Controls:
        """What the scheduler is told."""
        return Controls(
            **dict(zip(Controls.__struct_fields__, _CONTROLS.unpack_from(self._memory), strict=True))
        )

    def report(self, report: Report) -> None:
        """Tell the worker."""
        _REPORT.pack_into(self._memory, _HALF, *structs.astuple(report))

    def reported(self) -> Report:
        """What the scheduler did."""
        return Report(
            **dict(zip(Report.__struct_fields__, _REPORT.unpack_from(self._memory, _HALF), strict=True))
        )

    def close(self) -> None:
        """Give the memory back, and the file when it is still there."""
        self._memory.close()
        self.path.unlink(missing_ok=True)


_CONTROLS = struct.Struct(f"={len(Controls.__struct_fields__)}d")
_REPORT = struct.Struct(f"={len(Report.__struct_fields__)}d")


def _map(number: int) -> mmap.mmap:
    try:
        return mmap.mmap(number, _SIZE)
    finally:
        os.close(number)

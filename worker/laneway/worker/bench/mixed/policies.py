"""The gate in front of the engine, once for each policy that is compared."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from msgspec import Struct

from laneway.worker.bench.mixed.plan import Size
from laneway.worker.ports import Engine, Prepared

URGENT, PATIENT = 0, 1
"""Priorities of latency and throughput jobs in the engine, as the worker gives them; lower goes first."""


class Entrant(Struct, frozen=True):
    """A job in front of the gate."""

    prepared: Prepared
    latency: bool
    size: Size
    due_s: float
    """When it arrived, by the monotonic clock."""


class Hooks(Struct):
    """What whoever runs the job calls."""

    grew: Callable[[int], None] = lambda _: None
    """So many tokens came."""


class Gate(Protocol):
    """Says when a job enters the engine."""

    def turn(self, entrant: Entrant) -> AbstractAsyncContextManager[Hooks]:
        """Wait for the job's turn; it is in the engine until the block ends."""

    def close(self) -> None:
        """The run is over."""


class Policy(Struct, frozen=True, kw_only=True):
    """One row of the comparison."""

    name: str
    make: Callable[[Engine], Gate]
    by_class: bool = True
    """Whether the engine hears of the class; else it serves all in order of arrival."""
    level2: Mapping[str, float] | None = None
    """How Laneway's scheduler plans the engine's steps, in fields of its `Controls`; None: vLLM's own does."""
    knobs: str = ""


class Permits:
    """At most `most` throughput jobs in the engine, first come first served; latency jobs go straight in."""

    def __init__(self, most: int) -> None:
        self._free = asyncio.Semaphore(most)

    @asynccontextmanager
    async def turn(self, entrant: Entrant) -> AsyncIterator[Hooks]:
        """Throughput jobs wait for a permit."""
        if entrant.latency:
            yield Hooks()
            return
        async with self._free:
            yield Hooks()

    def close(self) -> None:
        """Nothing runs by itself."""


class Batches:
    """Gather `size` jobs, run them to the last one's end, then the next `size`.

    By length: those whose prompts are nearest to that of the job that waits longest, in place of the next in line.
    """

    def __init__(self, size: int, *, by_length: bool = False) -> None:
        self._size = size
        self._by_length = by_length
        self._waiting: list[tuple[Entrant, asyncio.Future[None]]] = []
        self._inside = 0

    @asynccontextmanager
    async def turn(self, entrant: Entrant) -> AsyncIterator[Hooks]:
        """Wait for the batch to be full, and for the one before to end."""
        let_in: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((entrant, let_in))
        self._next()
        await let_in
        try:
            yield Hooks()
        finally:
            self._inside -= 1
            self._next()

    def close(self) -> None:
        """Nothing runs by itself."""

    def _next(self) -> None:
        self._waiting = [waiting for waiting in self._waiting if not waiting[1].done()]
        if self._inside or len(self._waiting) < self._size:
            return
        head = self._waiting[0][0].size.prompt
        ranked = (
            sorted(self._waiting, key=lambda waiting: abs(waiting[0].size.prompt - head))
            if self._by_length
            else self._waiting
        )
        self._inside = self._size
        for _, let_in in ranked[: self._size]:
            let_in.set_result(None)


def static(size: int) -> Policy:
    """Static batches in order of arrival."""
    return Policy(name="static", make=lambda _: Batches(size), by_class=False, knobs=f"batches of {size}")


def grouped(size: int) -> Policy:
    """Static batches of similar prompt lengths."""
    return Policy(
        name="grouped",
        make=lambda _: Batches(size, by_length=True),
        by_class=False,
        knobs=f"batches of {size}",
    )


def fifo(backlog: int) -> Policy:
    """Everything into the engine in order of arrival."""
    return Policy(name="fifo", make=lambda _: Permits(backlog), by_class=False)


def priority(jobs: int) -> Policy:
    """vLLM's own priorities, with at least as many throughput jobs in the engine as it has seats."""
    return Policy(
        name="priority", make=lambda _: Permits(jobs), knobs=f"{jobs} throughput jobs in the engine"
    )


def semaphore(permits: int) -> Policy:
    """vLLM's own priorities, with seats kept free by a number of permits."""
    return Policy(name="semaphore", make=lambda _: Permits(permits), knobs=f"{permits} permits")

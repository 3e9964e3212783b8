"""Plays a load through a policy on a running engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from itertools import count

import msgspec
from msgspec import Struct

from laneway.schemas.build import build_job
from laneway.schemas.errors import LanewayError
from laneway.schemas.ids import new_job_id
from laneway.schemas.job import SloClass
from laneway.worker.bench.mixed.measure import Record
from laneway.worker.bench.mixed.plan import Arrival, Shape, Size, arrivals, backlog, prompt_ids
from laneway.worker.bench.mixed.policies import PATIENT, URGENT, Entrant, Gate, Hooks, Policy
from laneway.worker.engine.slo_page import Controls
from laneway.worker.engine.vllm_engine import VllmEngine
from laneway.worker.ports import Engine, Prepared

MODEL = "bench"


class BenchFailed(LanewayError):
    """Jobs broke, so the figures would mean nothing."""


class Load(Struct, frozen=True, kw_only=True):
    """What one run is made of."""

    shape: Shape
    seed: int
    backlog: int
    """Throughput jobs there are at any time; each that ends is followed by the next. 0: latency jobs alone."""
    ramp_s: float
    """Seconds under full load before anything is judged."""
    seconds: float
    """Seconds that are judged."""


async def play(engine: Engine, policy: Policy, load: Load, label: str) -> list[Record]:
    """One run: all jobs, as they were when it was broken off after `seconds`. The engine is empty before and after.

    Raises:
        BenchFailed: a job broke. EngineDied: the engine did.
    """
    second_level(engine, load.shape, policy.level2)
    run = _Run(engine, policy, load, f"{label} {policy.name} {policy.knobs} {load.seed}")
    try:
        return await run.all()
    finally:
        await settle(engine, f"{run.name} after")


async def settle(engine: Engine, name: str) -> None:
    """Return when nothing runs in the engine. It hears of aborts in order, so one small job is enough."""
    job = build_job(
        id=new_job_id(MODEL, 0),
        model=MODEL,
        prompt_token_ids=prompt_ids(name, 0, 4, engine.info.vocabulary),
        sampling={"max_tokens": 2, "temperature": 0.0, "ignore_eos": True},
    )
    async for _ in engine.generate(job.id, await engine.prepare(job), URGENT):
        pass


def second_level(engine: Engine, shape: Shape, level2: Mapping[str, float] | None) -> None:
    """Tell Laneway's scheduler in the engine, if it is there: its targets, and other `Controls`; None: to keep out."""
    page = engine.page if isinstance(engine, VllmEngine) else None
    if page is not None:
        told = {"ttft_s": shape.ttft_ms / 1000, "tpot_s": shape.tpot_ms / 1000, **(level2 or {})}
        page.control(Controls(enabled=float(level2 is not None), **told))


class _Run:
    def __init__(self, engine: Engine, policy: Policy, load: Load, name: str) -> None:
        self.name = name
        self._engine = engine
        self._policy = policy
        self._load = load
        self._gate: Gate = policy.make(engine)
        self._records: list[Record] = []
        self._number = count()
        self._begin = time.monotonic() + load.ramp_s

    async def all(self) -> list[Record]:
        """Play until the end, then break off whatever is left."""
        load = self._load
        sizes = backlog(load.shape, load.seed)
        coming = arrivals(load.shape, load.seed, load.ramp_s, load.seconds)
        try:
            async with asyncio.timeout(load.ramp_s + load.seconds), asyncio.TaskGroup() as group:
                for work in (*(self._feed(sizes) for _ in range(load.backlog)), self._arrive(coming)):
                    group.create_task(work)
        except TimeoutError:
            pass
        except BaseExceptionGroup as errors:
            raise _first(errors) from None
        finally:
            self._gate.close()
        return self._records

    def _now(self) -> float:
        return time.monotonic() - self._begin

    async def _sleep_until(self, at: float) -> None:
        await asyncio.sleep(max(0.0, at - self._now()))

    async def _feed(self, sizes: Iterator[Size]) -> None:
        while True:
            await self._job(next(sizes), self._now(), latency=False)

    async def _arrive(self, coming: Sequence[Arrival]) -> None:
        async with asyncio.TaskGroup() as jobs:
            for arrival in coming:
                await self._sleep_until(arrival.at)
                jobs.create_task(self._job(arrival.size, arrival.at, latency=True))

    # --- one job ------------------------------------------------------------------

    async def _job(self, size: Size, due: float, *, latency: bool) -> None:
        record = Record(latency=latency, due=due)
        self._records.append(record)
        prepared = await self._prepare(size, latency=latency)
        entrant = Entrant(self._guessed(prepared, latency=latency), latency, size, self._begin + due)
        async with self._gate.turn(entrant) as hooks:
            await self._generate(prepared, record, hooks)

    async def _generate(self, prepared: Prepared, record: Record, hooks: Hooks) -> None:
        priority = URGENT if record.latency or not self._policy.by_class else PATIENT
        stream = self._engine.generate(prepared.job.id, prepared, priority)
        reason = None
        async with aclosing(stream):  # type: ignore[type-var]
            async for pieces in stream:
                if grown := sum(len(piece.token_ids) for piece in pieces):
                    record.tokens.append((self._now(), grown))
                    hooks.grew(grown)
                reason = pieces[-1].finish_reason if pieces else reason
        if reason != "length":
            raise BenchFailed(f"{self.name}: expected every answer to end by its length, got {reason}")
        record.ended = self._now()

    async def _prepare(self, size: Size, *, latency: bool) -> Prepared:
        info, shape = self._engine.info, self._load.shape
        targets = {"ttft_ms": shape.ttft_ms, "tpot_ms": shape.tpot_ms} if latency else {}
        job = build_job(
            id=new_job_id(MODEL, 0),
            model=MODEL,
            prompt_token_ids=prompt_ids(self.name, next(self._number), size.prompt, info.vocabulary),
            slo=(SloClass.LATENCY if latency else SloClass.THROUGHPUT).value,
            sampling={"max_tokens": size.answer, "temperature": 0.0, "ignore_eos": True},
            **targets,
        )
        return await self._engine.prepare(job)

    def _guessed(self, prepared: Prepared, *, latency: bool) -> Prepared:
        """What a policy may know: that no answer of the class is longer than its longest."""
        shape = self._load.shape
        longest = max(shape.latency_answers if latency else shape.answers)
        return msgspec.structs.replace(prepared, max_tokens=longest)


def _first(errors: BaseExceptionGroup) -> BaseException:
    """The first of the errors that jobs ended with."""
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error

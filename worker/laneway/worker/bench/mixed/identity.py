"""Whether jobs get the same tokens in a crowd as alone: greedy answers, before anything is timed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from msgspec import Struct

from laneway.schemas.build import build_job
from laneway.schemas.ids import new_job_id
from laneway.worker.bench.mixed.drive import MODEL, second_level
from laneway.worker.bench.mixed.plan import Shape, Size, arrivals, backlog, prompt_ids
from laneway.worker.bench.mixed.policies import PATIENT, URGENT
from laneway.worker.ports import Engine

THROUGHPUT, LATENCY = 24, 8
"""Jobs that are compared."""
LONGEST = 48
"""Tokens of an answer that are compared: alone, each takes a step of its own."""
ROWS: Mapping[str, Mapping[str, float] | None] = {
    "engine's own steps": None,
    "level 2": {},
    "level 2, all pause": {"lean": 2.0, "pause": 2.0},
}


class Identity(Struct, frozen=True, kw_only=True):
    """How many jobs got what they get alone."""

    jobs: int
    different: int
    """Different answers among them, alone: with one for all, equality would say little."""
    equal: dict[str, int]
    """By the way in which steps are planned. Where the arithmetic depends on the batch, as in bfloat16, the engine's
    own steps tell how many can be expected."""


async def identity(engine: Engine, shape: Shape, seed: int) -> Identity:
    """All jobs alone, then all together by each way of planning steps."""
    second_level(engine, shape, None)
    jobs = _jobs(shape, seed)
    alone = [await _answer(engine, size, place, seed) for place, (size, _) in enumerate(jobs)]
    equal = {}
    for name, level2 in ROWS.items():
        second_level(engine, shape, level2)
        together = await _crowd(engine, jobs, seed)
        equal[name] = sum(a == b for a, b in zip(alone, together, strict=True))
    return Identity(jobs=len(jobs), different=len(set(alone)), equal=equal)


def _jobs(shape: Shape, seed: int) -> list[tuple[Size, bool]]:
    """Sizes, and whether of the latency class."""
    sizes = backlog(shape, seed)
    urgent = [arrival.size for arrival in arrivals(shape, seed, 0.0, 8 * LATENCY / shape.rate)][:LATENCY]
    return [(next(sizes), False) for _ in range(THROUGHPUT)] + [(size, True) for size in urgent]


async def _crowd(engine: Engine, jobs: Sequence[tuple[Size, bool]], seed: int) -> list[tuple[int, ...]]:
    """Throughput jobs at once; latency jobs beside them, one after the other."""
    patient = [
        asyncio.create_task(_answer(engine, size, place, seed, PATIENT))
        for place, (size, urgent) in enumerate(jobs)
        if not urgent
    ]
    answers = [
        await _answer(engine, size, place, seed, URGENT)
        for place, (size, urgent) in enumerate(jobs)
        if urgent
    ]
    return [*(await asyncio.gather(*patient)), *answers]


async def _answer(
    engine: Engine, size: Size, place: int, seed: int, priority: int = URGENT
) -> tuple[int, ...]:
    job = build_job(
        id=new_job_id(MODEL, 0),
        model=MODEL,
        prompt_token_ids=prompt_ids(f"identity {seed}", place, size.prompt, engine.info.vocabulary),
        sampling={"max_tokens": min(LONGEST, size.answer), "temperature": 0.0, "ignore_eos": True},
    )
    found: list[int] = []
    async for pieces in engine.generate(job.id, await engine.prepare(job), priority):
        for piece in pieces:
            found += piece.token_ids
    return tuple(found)

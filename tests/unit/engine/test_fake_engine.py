"""The fake engine is what the rest is tested with: it must be predictable, and break exactly as asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.support.builders import make_job

from laneway.schemas.ids import AdapterId
from laneway.schemas.job import Job
from laneway.worker.engine.fake_engine import FakeEngine, FakeEngineSettings
from laneway.worker.engine.fake_text import fake_answer, fake_text
from laneway.worker.errors import AttemptFailed, EngineDied, JobRefused
from laneway.worker.ports import Adapter, Piece

Start = Callable[..., Any]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts fake engines, and stops them in the end."""
    started: list[FakeEngine] = []

    async def start(sleep: Any = asyncio.sleep, **settings: Any) -> FakeEngine:
        engine = FakeEngine(FakeEngineSettings(**settings), sleep=sleep)
        started.append(engine)
        await engine.start(lambda phase, share: None)
        return engine

    yield start
    for engine in started:
        await engine.stop()


def job(ids: list[int] | None = None, **fields: Any) -> Job:
    fields.setdefault("sampling", {"max_tokens": 8})
    return make_job(prompt_token_ids=ids or [70, 71, 72], **fields)


async def run(engine: FakeEngine, job: Job, name: str = "a", priority: int = 0) -> list[Piece]:
    prepared = await engine.prepare(job)
    return [piece async for pieces in engine.generate(name, prepared, priority) for piece in pieces]


def tokens(pieces: list[Piece]) -> tuple[int, ...]:
    return tuple(token for piece in pieces for token in piece.token_ids)


async def test_the_answer_can_be_told_in_advance(start: Start) -> None:
    """`fake_answer` says what the engine answers, and the pieces' text joins to `fake_text` of it."""
    pieces = await run(await start(), job())
    assert tokens(pieces) == fake_answer((70, 71, 72), 8)
    assert "".join(piece.text for piece in pieces) == fake_text(tokens(pieces))
    assert pieces[-1].finish_reason == "length"


async def test_an_answer_continued_from_its_beginning_ends_the_same() -> None:
    """Prompt plus the first tokens of the answer continues with the rest of that very answer."""
    whole = fake_answer((70, 71), 8, seed=3)
    assert fake_answer((70, 71, *whole[:5]), 3, seed=3) == whole[5:]


async def test_adapter_and_seed_change_the_answer(start: Start) -> None:
    """Base model, adapter and seed each give an answer of their own."""
    engine = await start()
    await engine.load_adapter(Adapter(id=AdapterId("a"), path="/nowhere", digest="d1"))
    base, adapted = await run(engine, job()), await run(engine, job(lora="a"))
    seeded = await run(engine, job(sampling={"max_tokens": 8, "seed": 5}))
    assert len({tokens(base), tokens(adapted), tokens(seeded)}) == 3
    assert tokens(adapted) == fake_answer((70, 71, 72), 8, adapter="d1")


async def test_time_is_what_the_cost_model_says(start: Start) -> None:
    """With an injected clock a run takes base + prefill * tokens + decode * sequences, step by step."""
    spent: list[float] = []

    async def sleep(seconds: float) -> None:
        spent.append(seconds)
        await asyncio.sleep(0)

    engine = await start(sleep, base_s=1.0, prefill_s=0.1, decode_s=0.01, step_tokens=20)
    await run(engine, job([70] * 50, sampling={"max_tokens": 3}))
    assert spent[1:] == pytest.approx([3.0, 3.0, 2.0, 1.01, 1.01])


async def test_lower_priority_goes_first(start: Start) -> None:
    """With one seat, a waiting run of priority 0 overtakes an earlier one of priority 1."""
    engine = await start(seats=1)
    ended: list[str] = []

    async def note(name: str, priority: int) -> None:
        await run(engine, job(), name, priority)
        ended.append(name)

    engine.hang()
    running = [asyncio.create_task(note(name, priority)) for name, priority in (("late", 1), ("soon", 0))]
    await asyncio.sleep(0)
    engine.resume()
    await asyncio.gather(*running)
    assert ended == ["soon", "late"]


async def test_no_more_distinct_adapters_run_than_there_are_slots(start: Start) -> None:
    """Jobs of a further adapter wait in the engine; all of them end."""
    engine = await start(max_loras=2)
    for name in "abcde":
        await engine.load_adapter(Adapter(id=AdapterId(name), path="/nowhere"))
    answers = await asyncio.gather(*(run(engine, job(lora=name), name) for name in "abcde"))
    assert len({tokens(pieces) for pieces in answers}) == 5


async def test_an_idle_engine_makes_no_steps(start: Start) -> None:
    """Steps stand still once nothing runs."""
    engine = await start()
    await run(engine, job())
    steps = engine.stats().steps
    await asyncio.sleep(0.02)
    assert engine.stats().steps == steps
    assert engine.stats().running == 0


async def test_death_ends_every_run(start: Start) -> None:
    """A job with the metadata `fake: die` takes the whole engine down at its first step."""
    engine = await start()
    bystander = asyncio.create_task(run(engine, job(sampling={"max_tokens": 900}), "bystander"))
    with pytest.raises(EngineDied):
        await run(engine, job(metadata={"fake": "die"}), "killer")
    with pytest.raises(EngineDied):
        await bystander
    assert engine.died.is_set()
    with pytest.raises(EngineDied):
        await run(engine, job(), "late")


async def test_a_hung_engine_makes_no_steps_until_it_is_resumed(start: Start) -> None:
    """`fake: hang` stops the steps of all; only the counter tells."""
    engine = await start()
    running = asyncio.create_task(run(engine, job(metadata={"fake": "hang"})))
    await asyncio.sleep(0.02)
    assert not running.done()
    assert engine.stats().steps == 0
    assert not engine.died.is_set()
    engine.resume()
    assert tokens(await running) == fake_answer((70, 71, 72), 8)


@pytest.mark.parametrize(("fault", "error"), [("refuse", JobRefused), ("fail", AttemptFailed)])
async def test_a_fault_of_one_job_leaves_the_others_alone(
    start: Start, fault: str, error: type[Exception]
) -> None:
    """`fake: refuse` and `fake: fail` hit only the job that carries them."""
    engine = await start()
    good = asyncio.create_task(run(engine, job(), "good"))
    with pytest.raises(error):
        await run(engine, job(metadata={"fake": fault}), "bad")
    assert tokens(await good) == fake_answer((70, 71, 72), 8)


async def test_the_next_run_can_be_made_to_fail(start: Start) -> None:
    """`fail_next` and `refuse_next` hit one run each, then all is well."""
    engine = await start()
    engine.fail_next()
    engine.refuse_next("no_luck")
    with pytest.raises(AttemptFailed):
        await run(engine, job())
    with pytest.raises(JobRefused) as refused:
        await run(engine, job())
    assert refused.value.code == "no_luck"
    assert len(tokens(await run(engine, job()))) == 8

"""A worker at work: the service, a fake engine, and a queue in memory or on a real server."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from tests.support.builders import make_job
from tests.support.installations import Installation
from tests.support.serving import LONG, STEP_S, result_of, serving
from tests.support.wait import wait_until

from laneway.schemas.events import Ended, Started, Tokens
from laneway.schemas.ids import WorkerId
from laneway.schemas.outcome import Cancelled, Completed, Expired, Failed
from laneway.worker.engine.fake_engine import FakeEngine, FakeEngineSettings
from laneway.worker.policy.admission import window_of
from laneway.worker.service import Service
from laneway.worker.settings import WorkerSettings
from laneway.worker.telemetry import Fact, Telemetry

# --- the main path ------------------------------------------------------------


async def test_every_job_gets_its_outcome(ends: Installation) -> None:
    """Both classes, every bucket, with and without adapters: all complete, and nothing is left in the worker."""
    jobs = [
        make_job(
            prompt="word " * words,
            slo=slo,
            lora=lora,
            bucket=bucket,
            metadata={"custom_id": f"{slo}-{bucket}-{lora}"},
        )
        for slo in ("latency", "throughput")
        for bucket, words in (("short", 3), ("medium", 600), ("long", 2000))
        for lora in (None, "a", "b", "c")
    ]
    async with serving(ends, FakeEngineSettings(max_loras=2, answer_tokens=3)) as worker:
        await ends.submit(*jobs)
        for job in jobs:
            result = await result_of(ends, job)
            assert isinstance(result.outcome, Completed)
            assert (result.outcome.lora, result.metadata, result.attempt) == (job.lora, job.metadata, 1)
            assert result.timeline.submitted_ms <= result.timeline.claimed_ms <= result.timeline.started_ms
            assert result.timeline.started_ms <= result.timeline.first_token_ms <= result.timeline.ended_ms
        await wait_until(lambda: len(worker.service.hands) == 0)
        worker.assert_idle()


async def test_a_consumer_sees_the_answer_grow_and_then_the_end(ends: Installation, output: str) -> None:
    """Started, every token in order, and the end only when the result can be read."""
    await ends.listen(output)
    job = make_job(stream=True, reply_to=output)
    async with serving(ends):
        await ends.submit(job)
        result = await result_of(ends, job)
        seen = await wait_until(lambda: _ended(ends, output))
    assert isinstance(seen[0], Started)
    assert isinstance(seen[-1], Ended)
    assert seen[-1].state == "completed"
    tokens = [event for event in seen if isinstance(event, Tokens)]
    assert [event.seq for event in tokens] == list(range(len(tokens)))
    assert "".join(event.text for event in tokens) == result.text


async def test_who_wants_no_stream_gets_the_end_alone(ends: Installation, output: str) -> None:
    """A job without `stream` costs its consumer one event."""
    await ends.listen(output)
    job = make_job(reply_to=output)
    async with serving(ends):
        await ends.submit(job)
        assert [type(event) for event in await wait_until(lambda: _ended(ends, output))] == [Ended]


async def test_a_consumer_may_attach_while_the_job_runs(ends: Installation, output: str) -> None:
    """From then on it gets every token, even of a job that nobody wanted to stream."""
    await ends.listen(output)
    job = make_job(sampling={"max_tokens": 300, "ignore_eos": True})
    async with serving(ends) as worker:
        await ends.submit(job)
        await worker.says("job.first_token")
        await ends.attach(job.id, output)
        seen = await wait_until(lambda: _ended(ends, output))
    tokens = [event for event in seen if isinstance(event, Tokens)]
    assert tokens
    assert tokens[-1].seq == 299


async def _ended(ends: Installation, output: str) -> list[Any]:
    events = await ends.heard(output)
    return list(events) if any(isinstance(event, Ended) for event in events) else []


@pytest.mark.unfinished
@pytest.mark.case("C38")
async def test_latency_jobs_pass_a_flood_of_throughput_jobs(ends: Installation) -> None:
    """Seats are kept for them, and what waits in a lane waits there: never behind them in the engine."""
    flood = [make_job(slo="throughput", sampling={"max_tokens": 60, "ignore_eos": True}) for _ in range(20)]
    async with serving(ends, FakeEngineSettings(seats=4, base_s=STEP_S)) as worker:
        await ends.submit(*flood)
        await worker.says("job.started", 3)
        urgent = make_job(slo="latency", sampling={"max_tokens": 2})
        await ends.submit(urgent)
        await result_of(ends, urgent)
        assert len(worker.told("job.started")) == 4
        assert len(worker.told("job.claimed")) <= 4 + window_of(4, 0)
        assert worker.service.hands.ledger().throughput == 3
        assert worker.engine.stats().waiting == 0


@pytest.mark.case("F71")
async def test_nothing_is_claimed_before_the_worker_is_ready(ends: Installation) -> None:
    """A start that fails, or lasts, costs no job an attempt."""
    job = make_job()
    await ends.queue()
    await ends.submit(job)
    gate = asyncio.Event()
    engine = FakeEngine(FakeEngineSettings(start_s=1), sleep=lambda seconds: _pass(gate, seconds))
    facts: list[Fact] = []
    service = Service(
        settings=WorkerSettings(engine="fake"),
        queue=await ends.queue("b"),
        engine=engine,
        adapters={},
        worker=WorkerId("b"),
        telemetry=Telemetry(facts.append),
    )
    task = asyncio.create_task(service.run())
    await wait_until(lambda: any(fact.event == "engine.progress" for fact in facts))
    assert service.phase == "starting"
    record = await ends.record(job.id)
    assert record is not None
    assert record.attempt == 0
    gate.set()
    await result_of(ends, job)
    service.drain()
    await task


async def _pass(gate: asyncio.Event, seconds: float) -> None:
    if seconds:
        await gate.wait()
    await asyncio.sleep(0)


# --- broken off ---------------------------------------------------------------


@pytest.mark.case("B31")
async def test_a_cancel_reaches_the_engine_within_a_second(ends: Installation) -> None:
    """The seat and the engine's memory are free again, and what was generated is kept."""
    job = make_job(sampling=LONG)
    async with serving(ends) as worker:
        await ends.submit(job)
        await worker.says("job.first_token")
        asked = time.monotonic()
        await ends.cancel(job.id)
        result = await result_of(ends, job)
        assert time.monotonic() - asked < 1
        assert isinstance(result.outcome, Cancelled)
        assert result.text
        await wait_until(lambda: len(worker.service.hands) == 0)
        worker.assert_idle()


@pytest.mark.case("C34")
async def test_a_deadline_ends_a_job_in_every_state(ends: Installation) -> None:
    """Waiting for an adapter's slot or in the middle of its answer: expired, not silence."""
    running = make_job(sampling=LONG, lora="a", deadline_ms=1000)
    waiting = make_job(sampling=LONG, lora="b", deadline_ms=400)
    async with serving(ends, FakeEngineSettings(max_loras=1, base_s=STEP_S)) as worker:
        await ends.submit(running)
        await worker.says("job.first_token")
        await ends.submit(waiting)
        for job in (running, waiting):
            result = await result_of(ends, job)
            assert isinstance(result.outcome, Expired)
            assert job.deadline_ms is not None
            assert job.deadline_ms <= result.timeline.ended_ms - result.timeline.submitted_ms
        assert (await result_of(ends, running)).text
        await wait_until(lambda: len(worker.service.hands) == 0)
        worker.assert_idle()


@pytest.mark.case("C37")
async def test_nothing_is_left_after_any_mix_of_ends(ends: Installation) -> None:
    """Completed, refused, failed, cancelled, expired, retried: seats, runs and adapters all return to zero."""
    once = {"max_attempts": 1}
    jobs = [
        make_job(),
        make_job(lora="nobody"),
        make_job(metadata={"fake": "refuse"}, lora="a"),
        make_job(metadata={"fake": "fail"}, lora="a", attempts=once),
        make_job(sampling={**LONG, "n": 3}, lora="b", deadline_ms=300),
        make_job(sampling={**LONG, "n": 3}, lora="b", slo="throughput", deadline_ms=300),
    ]
    cancelled = [make_job(sampling=LONG, slo=slo, lora="c") for slo in ("latency", "throughput")]
    async with serving(ends) as worker:
        await ends.submit(*jobs, *cancelled)
        await worker.says("job.claimed", len(jobs + cancelled))
        for job in cancelled:
            await ends.cancel(job.id)
        kinds = [type((await result_of(ends, job)).outcome) for job in jobs + cancelled]
        assert kinds == [Completed, Failed, Failed, Failed, Expired, Expired, Cancelled, Cancelled]
        await wait_until(lambda: len(worker.service.hands) == 0)
        worker.assert_idle()

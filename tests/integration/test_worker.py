"""A worker at work: the service, a fake engine, and a queue in memory or on a real server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from tests.conftest import NAMES, Servers
from tests.support.builders import make_job
from tests.support.installations import Installation, MemoryInstallation, RedisInstallation
from tests.support.wait import wait_until

from laneway.schemas.events import Ended, Started, Tokens
from laneway.schemas.ids import AdapterId, WorkerId
from laneway.schemas.job import Job
from laneway.schemas.keys import lanes
from laneway.schemas.outcome import Cancelled, Completed, Expired, Failed, Result
from laneway.worker.engine.fake_engine import FakeEngine, FakeEngineSettings
from laneway.worker.errors import EngineDied, QueueUnavailable
from laneway.worker.ports import Adapter, JobQueue
from laneway.worker.service import Service
from laneway.worker.settings import WorkerSettings
from laneway.worker.telemetry import Fact, Telemetry

STEP_S = 0.005
LONG = {"max_tokens": 3000, "ignore_eos": True}
"""Fifteen seconds, if nobody stops it."""
ADAPTERS = {AdapterId(name): Adapter(id=AdapterId(name), path=f"/models/{name}") for name in ("a", "b", "c")}


@pytest.fixture(params=["memory", *(pytest.param(name, marks=pytest.mark.redis) for name in NAMES[:1])])
async def ends(
    request: pytest.FixtureRequest, servers: Servers, namespace: str
) -> AsyncIterator[Installation]:
    """Both ends of a queue: in memory, and on a real server."""
    if request.param == "memory":
        made: Installation = MemoryInstallation()
    else:
        made = RedisInstallation(servers.get(request.param).url, namespace)
    yield made
    await made.close()


@pytest.fixture
def output(namespace: str) -> str:
    """The key of an output stream."""
    return f"{{{namespace}:out:1}}"


class Running:
    """A service that runs, with what it told and the engine in a test's hands."""

    def __init__(
        self, service: Service, engine: FakeEngine, facts: list[Fact], task: asyncio.Task[None]
    ) -> None:
        self.service = service
        self.engine = engine
        self.facts = facts
        self.task = task
        self.ends_with: type[Exception] | None = None
        """How it ends, where that is no good end."""

    def told(self, event: str) -> list[Fact]:
        """The facts of that name."""
        return [fact for fact in self.facts if fact.event == event]

    async def says(self, event: str, times: int = 1) -> list[Fact]:
        """The same, once there are so many."""
        await wait_until(lambda: len(self.told(event)) >= times, f"{times} x {event}")
        return self.told(event)

    def assert_idle(self) -> None:
        """Nothing is left: no job in hand, no seat taken, no run in the engine, no adapter lent."""
        stats, ledger = self.engine.stats(), self.service.hands.ledger()
        assert (stats.running, stats.waiting, ledger.latency, ledger.throughput) == (0, 0, 0, 0)
        assert len(self.service.hands) == 0
        assert not self.service.adapters.in_use


@asynccontextmanager
async def serving(
    ends: Installation,
    engine: FakeEngineSettings | None = None,
    queue: JobQueue | None = None,
    **options: Any,
) -> AsyncIterator[Running]:
    """A ready worker; it drains at the end, and must end well."""
    made = FakeEngine(engine or FakeEngineSettings(base_s=STEP_S, answer_tokens=4))
    facts: list[Fact] = []
    service = Service(
        settings=WorkerSettings(engine="fake", **{"lease_s": 3.0, "drain_s": 0.0, **options}),
        queue=queue or await ends.queue(lease_s=3.0),
        engine=made,
        adapters=ADAPTERS,
        worker=WorkerId("a"),
        telemetry=Telemetry(facts.append),
    )
    task = asyncio.create_task(service.run())
    running = Running(service, made, facts, task)
    try:
        await wait_until(lambda: service.ready or task.done(), "a ready worker")
        yield running
    finally:
        service.drain()
        await asyncio.wait([task])
    if running.ends_with is None:
        task.result()
    else:
        assert isinstance(task.exception(), running.ends_with)


async def result_of(ends: Installation, job: Job) -> Result:
    """A job's outcome, once there is one."""
    return await wait_until(lambda: ends.result(job.id), f"a result of {job.id}")


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
async def test_latency_jobs_pass_a_flood_of_throughput_jobs(ends: Installation) -> None:
    """Seats are kept for them, and what waits in a lane waits there: never behind them in the engine."""
    flood = [make_job(slo="throughput", sampling={"max_tokens": 60, "ignore_eos": True}) for _ in range(20)]
    async with serving(ends, FakeEngineSettings(seats=4, base_s=STEP_S)) as worker:
        await ends.submit(*flood)
        await worker.says("job.started", 3)
        urgent = make_job(slo="latency", sampling={"max_tokens": 2})
        await ends.submit(urgent)
        await result_of(ends, urgent)
        assert len(worker.told("job.claimed")) == 4
        assert worker.service.hands.ledger().throughput == 3
        assert worker.engine.stats().waiting == 0


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


async def test_a_deadline_ends_a_job_in_every_state(ends: Installation) -> None:
    """Waiting for an adapter's slot or in the middle of its answer: expired, not silence."""
    running = make_job(sampling=LONG, lora="a", deadline_ms=400)
    waiting = make_job(sampling=LONG, lora="b", deadline_ms=400)
    async with serving(ends, FakeEngineSettings(max_loras=1, base_s=STEP_S)) as worker:
        await ends.submit(running, waiting)
        for job in (running, waiting):
            result = await result_of(ends, job)
            assert isinstance(result.outcome, Expired)
            assert 400 <= result.timeline.ended_ms - result.timeline.submitted_ms < 1400
        assert (await result_of(ends, running)).text
        await wait_until(lambda: len(worker.service.hands) == 0)
        worker.assert_idle()


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


# --- trouble ------------------------------------------------------------------


async def test_what_is_no_job_is_set_aside_and_the_worker_lives(ends: Installation) -> None:
    """Bytes put into a lane by hand become a dead letter; the next job runs."""
    lane = lanes(0)[0]
    job = make_job()
    async with serving(ends) as worker:
        for nonsense in (b"", b"\xff\xfe nonsense", b"\xc1" * 1000):
            await ends.put(lane, nonsense)
        await ends.submit(job)
        assert isinstance((await result_of(ends, job)).outcome, Completed)
        await worker.says("job.dead_lettered", 3)
        assert len(await ends.dead()) == 3


async def test_a_broken_attempt_is_repeated_after_its_back_off(ends: Installation) -> None:
    """The second attempt completes; the first one counts."""
    job = make_job(attempts={"max_attempts": 3, "backoff_ms": 50})
    async with serving(ends) as worker:
        worker.engine.fail_next()
        await ends.submit(job)
        result = await result_of(ends, job)
        assert isinstance(result.outcome, Completed)
        assert result.attempt == 2
        assert len(worker.told("job.retried")) == 1


async def test_a_job_that_never_succeeds_is_failed_and_kept_aside(ends: Installation) -> None:
    """Attempts used up: an outcome for whoever waits, and a dead letter for whoever looks into it."""
    job = make_job(metadata={"fake": "fail"}, attempts={"max_attempts": 2, "backoff_ms": 10})
    async with serving(ends):
        await ends.submit(job)
        outcome = (await result_of(ends, job)).outcome
        assert isinstance(outcome, Failed)
        assert outcome.error.code == "attempt_failed"
        (letter,) = await wait_until(ends.dead)
        assert letter["job_id"] == job.id


class Flaky:
    """A queue whose server can be made to go away."""

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue
        self.away = False

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._queue, name)
        if name == "now_ms":
            return method

        async def call(*args: Any) -> Any:
            if self.away:
                raise QueueUnavailable("the server went away")
            return await method(*args)

        return call


async def test_an_outage_loses_no_outcome_and_is_told_once(ends: Installation) -> None:
    """Jobs that end while the server is away are settled when it is back, from the attempt that ended."""
    jobs = [make_job(sampling={"max_tokens": 40, "ignore_eos": True}) for _ in range(5)]
    flaky = Flaky(await ends.queue(lease_s=3.0))
    async with serving(ends, queue=cast(JobQueue, flaky)) as worker:
        await ends.submit(*jobs)
        await worker.says("job.first_token", 5)
        flaky.away = True
        await wait_until(lambda: worker.engine.stats().running == 0)
        await worker.says("queue.unavailable")
        assert len(worker.service.hands) == 5
        flaky.away = False
        for job in jobs:
            assert (await result_of(ends, job)).attempt == 1
        await worker.says("queue.recovered")
        assert len(worker.told("queue.unavailable")) == 1


async def test_a_dead_engine_ends_the_worker_and_frees_its_jobs(ends: Installation) -> None:
    """Nothing waits for the lease: the jobs are on offer again before the process ends."""
    jobs = [make_job(sampling=LONG, attempts={"backoff_ms": 10}) for _ in range(3)]
    async with serving(ends) as worker:
        await ends.submit(*jobs)
        await worker.says("job.first_token", 3)
        worker.engine.die()
        worker.ends_with = EngineDied
        await asyncio.wait([worker.task], timeout=5)
        assert len(worker.told("job.retried")) == 3
        worker.assert_idle()
    async with serving(ends) as worker:
        await worker.says("job.claimed", 3)
        for job in jobs:
            await ends.cancel(job.id)
            assert isinstance((await result_of(ends, job)).outcome, Cancelled)


async def test_a_dead_task_of_its_own_ends_the_worker(
    ends: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that only looks alive is worse than none: a defect ends it, and its jobs are handed back."""
    job = make_job(sampling=LONG)
    queue = await ends.queue(lease_s=3.0)

    async def broken(*_: object) -> None:
        raise ZeroDivisionError

    async with serving(ends, queue=queue) as worker:
        await ends.submit(job)
        await worker.says("job.first_token")
        worker.ends_with = ZeroDivisionError
        monkeypatch.setattr(queue, "controls", broken)
        await asyncio.wait([worker.task], timeout=5)
        assert len(worker.told("job.handed_back")) == 1
    record = await ends.record(job.id)
    assert record is not None
    assert record.failures == 0
    async with serving(ends) as worker:
        await worker.says("job.claimed")
        await ends.cancel(job.id)
        await result_of(ends, job)

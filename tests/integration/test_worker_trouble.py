"""What a worker does when something breaks: entries, attempts, the server, the engine, the worker itself."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest
from tests.support.builders import make_job
from tests.support.installations import Installation, MemoryInstallation, take
from tests.support.serving import LONG, STEP_S, result_of, serving
from tests.support.wait import wait_until

from laneway.schemas.events import Event
from laneway.schemas.job import Job
from laneway.schemas.keys import lanes
from laneway.schemas.outcome import Cancelled, Completed, Failed, JobError
from laneway.schemas.sampling import Sampling
from laneway.schemas.state import JobState
from laneway.worker import intake
from laneway.worker.engine.fake_engine import FakeEngine, FakeEngineSettings
from laneway.worker.errors import EngineDied, QueueUnavailable
from laneway.worker.policy.quarantine import SUSPECT
from laneway.worker.ports import Claim, JobQueue, Prepared, Settlement


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


async def test_the_end_of_a_back_off_is_not_waited_for_longer_than_it_lasts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No bell rings then. A worker that only looked once in a while would see this one after an hour."""
    monkeypatch.setattr(intake, "POLL_S", 3600.0)
    monkeypatch.setattr(intake, "RECLAIM_S", 3600.0)
    ends = MemoryInstallation()
    job = make_job(attempts={"max_attempts": 3, "backoff_ms": 50})
    async with serving(ends, lease_s=7200.0) as worker:
        worker.engine.fail_next()
        await ends.submit(job)
        assert (await result_of(ends, job)).attempt == 2


async def test_a_suspect_is_noted_as_running_before_anything_is_done_with_it(
    ends: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it does to the worker from then on is known to have happened while it was there."""
    job = make_job()
    await ends.submit(job)
    for _ in range(SUSPECT):
        (claim,) = await take(queue := await ends.queue())
        await queue.lose(claim, JobError(code="engine_died", message=""))
    states: list[JobState] = []

    async def look(self: FakeEngine, job: Job) -> Prepared:
        if record := await ends.record(job.id):  # no warm-up
            states.append(record.state)
        return await prepare(self, job)

    prepare = FakeEngine.prepare
    monkeypatch.setattr(FakeEngine, "prepare", look)
    async with serving(ends):
        assert isinstance((await result_of(ends, job)).outcome, Completed)
    assert states == [JobState.RUNNING]


async def test_an_engine_that_happens_to_be_empty_serves_suspects_last_where_another_sees_to_them(
    ends: Installation,
) -> None:
    """Workers that come up after a crash go on with what else waits; they take suspects when they are idle."""
    suspects, plain = [make_job() for _ in range(9)], make_job()
    await ends.submit(*suspects)
    queue = await ends.queue("b")
    for _ in range(SUSPECT):
        for claim in await take(queue):
            await queue.lose(claim, JobError(code="engine_died", message=""))
    assert await take(queue) == []
    busy = await queue.isolate(0, empty=True) or []
    assert len(busy) == 8
    await ends.submit(plain)
    async with serving(ends) as worker:
        await worker.says("job.settled", 2)
        (left,) = {job.id for job in suspects} - {claim.job.id for claim in busy if isinstance(claim, Claim)}
        assert [fact.job_id for fact in worker.told("job.claimed")] == [plain.id, left]
        await queue.hand_back([claim for claim in busy if isinstance(claim, Claim)])
        for job in suspects:
            assert isinstance((await result_of(ends, job)).outcome, Completed)


async def test_an_appointed_worker_lets_its_engine_run_empty_and_serves_the_suspects_first(
    ends: Installation,
) -> None:
    """What waits meanwhile is left to others; with no others, until the suspects are done."""
    long, suspect, plain = make_job(sampling=LONG), make_job(), make_job()
    queue = await ends.queue("b")
    async with serving(ends, FakeEngineSettings(seats=1, base_s=STEP_S)) as worker:
        await ends.submit(long)
        await worker.says("job.started")
        await ends.submit(suspect)
        for _ in range(SUSPECT):
            (claim,) = await take(queue)
            await queue.lose(claim, JobError(code="engine_died", message=""))
        assert await take(queue) == []
        await wait_until(lambda: worker.service.intake.appointed, "an appointment")
        await ends.submit(plain)
        await ends.cancel(long.id)
        for job in (suspect, plain):
            assert isinstance((await result_of(ends, job)).outcome, Completed)
        order = [fact.job_id for fact in worker.told("job.claimed")]
        assert order == [long.id, suspect.id, plain.id]


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
        if name in ("now_ms", "due_in"):
            return method

        async def call(*args: Any, **options: Any) -> Any:
            if self.away:
                raise QueueUnavailable("the server went away")
            return await method(*args, **options)

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


@pytest.mark.case("A15")
async def test_jobs_whose_claim_was_not_answered_are_not_left_to_their_lease(
    ends: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server gave them out, and the reply was lost: the worker gives back what it knows nothing of, and takes it again."""
    queue = await ends.queue(lease_s=3600.0)
    claim, lost = queue.claim, 0

    async def lose_two_replies(*args: Any) -> Any:
        nonlocal lost
        items = await claim(*args)
        if items and lost < 2:
            lost += 1
            raise QueueUnavailable("the reply was lost")
        return items

    monkeypatch.setattr(queue, "claim", lose_two_replies)
    jobs = [make_job() for _ in range(3)]
    async with serving(ends, queue=queue, lease_s=3600.0):
        await ends.submit(*jobs)
        for job in jobs:
            assert isinstance((await result_of(ends, job)).outcome, Completed)
        record = await ends.record(jobs[0].id)
        assert record is not None
        assert record.losses == 0
    assert lost == 2


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


@pytest.mark.parametrize("refused", ["settle", "retry"])
async def test_nothing_more_is_sent_of_a_job_that_was_given_up(
    refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fenced or retried: what consumers have not been sent by then is another attempt's to say."""
    ends = MemoryInstallation()
    queue = await ends.queue(lease_s=3.0)
    sent: list[Event] = []
    gate = asyncio.Event()

    async def publish(events: Mapping[str, Sequence[Event]]) -> set[str]:
        sent.extend(event for some in events.values() for event in some)
        await gate.wait()
        return set()

    async def refuse(*call: object) -> Any:
        return Settlement.FENCED if refused == "settle" else False

    monkeypatch.setattr(queue, "publish", publish)
    monkeypatch.setattr(queue, refused, refuse)
    job = make_job(stream=True, reply_to="out", sampling=Sampling(max_tokens=20, ignore_eos=True))
    async with serving(ends, queue=queue) as worker:
        await ends.submit(job)
        await wait_until(lambda: sent, "the beginning of the answer")
        before = list(sent)
        await wait_until(lambda: worker.engine.stats().generated_tokens > 5, "more of it")
        if refused == "retry":
            await worker.engine.abort(f"{job.id}.1")
        await worker.says("job.fenced")
        gate.set()
        await worker.service.publisher.flush(1)
    assert sent == before

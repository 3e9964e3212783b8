"""What every `JobQueue` promises of jobs that go back, are given up or cancelled."""

from __future__ import annotations

import asyncio
import math
import time

import pytest
from tests.support.builders import completed, failed, make_job
from tests.support.installations import (
    SHORT_LEASE_S,
    Installation,
    plan,
    take,
)
from tests.support.steps import reclaimed
from tests.support.wait import wait_until

from laneway.schemas.cards import CancelJob
from laneway.schemas.job import Bucket, SloClass
from laneway.schemas.keys import Lane
from laneway.schemas.outcome import Cancelled, Failed, JobError
from laneway.schemas.state import JobState
from laneway.worker.ports import Settlement, Unreadable

pytestmark = pytest.mark.unfinished

ERROR = JobError(code="engine_died", message="the engine died")


# --- going back ---------------------------------------------------------------


async def test_a_job_handed_back_is_there_at_once_and_in_front(both_ends: Installation) -> None:
    """No lease has to lapse first, no failure is counted, and whoever asks gets it before later jobs."""
    queue, other = await both_ends.queue("a"), await both_ends.queue("b")
    jobs = [make_job() for _ in range(3)]
    await both_ends.submit(*jobs[:2])
    claims = await take(queue)
    await both_ends.submit(jobs[2])
    await queue.hand_back(claims)
    again = await take(other)
    assert [claim.job.id for claim in again] == [job.id for job in jobs]
    assert [(claim.attempt, claim.failures, claim.losses) for claim in again[:2]] == [(2, 0, 0)] * 2
    assert await queue.settle(claims[0], completed(jobs[0].id)) is Settlement.FENCED


async def test_handed_back_throughput_jobs_do_not_overtake_latency_jobs(both_ends: Installation) -> None:
    """The front of a lane is not the front of all lanes, and the plan's caps hold for what came back."""
    queue = await both_ends.queue()
    await both_ends.submit(*(make_job(slo="throughput") for _ in range(3)))
    await queue.hand_back(await take(queue))
    await both_ends.submit(make_job())
    claims = await take(queue, 10, throughput=2)
    assert [claim.job.slo.value for claim in claims] == ["latency", "throughput", "throughput"]


async def test_only_the_owner_can_hand_a_job_back(both_ends: Installation) -> None:
    """A worker that has lost a job does not take it from the one that has it."""
    slow, fast = await both_ends.queue("slow"), await both_ends.queue("fast", lease_s=SHORT_LEASE_S)
    await both_ends.submit(make_job())
    stale = await take(slow)
    await reclaimed(fast)
    fresh = await take(fast)
    await slow.hand_back(stale)
    assert await fast.renew(fresh) == []
    assert await take(slow) == []


async def test_jobs_of_which_a_worker_never_heard_go_back_at_no_cost(both_ends: Installation) -> None:
    """The reply to its claim was lost: it returns whatever is its own but not in its hands, and nobody else's."""
    queue, other = await both_ends.queue(), await both_ends.queue("b")
    jobs = [make_job(slo=slo) for slo in ("latency", "throughput") for _ in range(3)]
    await both_ends.submit(*jobs)
    held = await take(queue, 2)
    theirs = await take(other, 1)
    unheard = await take(queue, 2)
    assert await queue.disown(held) == 2
    assert await queue.disown(held) == 0
    for claim in unheard:
        record = await both_ends.record(claim.job.id)
        assert record is not None
        assert (record.state, record.owner, record.losses) == (JobState.QUEUED, "", 0)
    assert await queue.renew(held) == await other.renew(theirs) == []
    again = await take(other, 3)
    assert {claim.job.id for claim in unheard} <= {claim.job.id for claim in again}
    assert sorted(claim.attempt for claim in again) == [1, 2, 2]


async def test_a_retry_waits_and_counts(both_ends: Installation) -> None:
    """The job comes back once its back-off has passed, with one more failure to its name."""
    queue, job = await both_ends.queue(), make_job()
    await both_ends.submit(job)
    (claim,) = await take(queue)
    assert await queue.retry(claim, ERROR, 150)
    asked_at = time.monotonic()
    record = await both_ends.record(job.id)
    assert record is not None
    assert (record.state, record.error, record.failures) == (JobState.RETRYING, "engine_died", 1)
    (again,) = await wait_until(lambda: take(queue), "the retried job")
    assert time.monotonic() - asked_at > 0.1
    assert (again.attempt, again.failures, again.losses) == (2, 1, 0)


async def test_a_job_in_its_back_off_is_not_taken_for_lost(both_ends: Installation) -> None:
    """A back-off may be longer than the lease."""
    queue = await both_ends.queue(lease_s=0.05)
    await both_ends.submit(make_job())
    (claim,) = await take(queue)
    await queue.retry(claim, ERROR, 400)
    begin = time.monotonic()

    async def back() -> int:
        assert await queue.reclaim() == 0
        return len(await take(queue))

    assert await wait_until(back) == 1
    assert time.monotonic() - begin > 0.3


async def test_a_retry_told_twice_counts_once(both_ends: Installation) -> None:
    """The reply to the first telling was lost. The second one succeeds, also when the job is in other hands by then."""
    queue, other = await both_ends.queue(), await both_ends.queue("b")
    await both_ends.submit(make_job())
    (claim,) = await take(queue)
    assert await queue.retry(claim, ERROR, 0)
    assert await queue.retry(claim, ERROR, 0)
    (again,) = await take(other)
    assert await queue.retry(claim, ERROR, 0)
    assert (again.attempt, again.failures) == (2, 1)
    assert await other.renew([again]) == []


async def test_a_queue_tells_when_a_back_off_ends(both_ends: Installation) -> None:
    """No bell rings then: whoever waits for work need wait no longer than that."""
    queue = await both_ends.queue()
    await both_ends.submit(make_job())
    (claim,) = await take(queue)
    assert queue.due_in() == math.inf
    await queue.retry(claim, ERROR, 60_000)
    assert await take(queue) == []
    assert 30 < queue.due_in() <= 60


async def test_a_former_owner_cannot_retry(both_ends: Installation) -> None:
    """False means: the job is somebody else's, nothing was counted."""
    slow, fast = await both_ends.queue("slow"), await both_ends.queue("fast", lease_s=SHORT_LEASE_S)
    job = make_job()
    await both_ends.submit(job)
    (stale,) = await take(slow)
    await reclaimed(fast)
    fresh = await take(fast)
    assert not await slow.retry(stale, ERROR, 0)
    assert await fast.renew(fresh) == []
    record = await both_ends.record(job.id)
    assert record is not None
    assert record.failures == 0


# --- dead letters -------------------------------------------------------------


async def test_a_dead_letter_keeps_the_whole_job(both_ends: Installation) -> None:
    """The consumer gets the failure, the operator the job and its last error."""
    queue, job = await both_ends.queue(), make_job(prompt="x" * 100_000)
    await both_ends.submit(job)
    (claim,) = await take(queue)
    assert await queue.dead_letter(claim, failed(job.id)) is Settlement.STORED
    assert await queue.dead_letter(claim, failed(job.id)) is Settlement.REPEATED
    (letter,) = await both_ends.dead()
    assert (letter["job_id"], letter["error"]) == (job.id, "engine_died")
    assert len(letter["data"]) > 100_000
    result = await both_ends.result(job.id)
    assert result is not None
    assert isinstance(result.outcome, Failed)


async def test_what_is_not_a_job_is_buried(both_ends: Installation) -> None:
    """Bytes in a lane that nobody can read are put aside, and the jobs around them run."""
    queue, job = await both_ends.queue(), make_job()
    await both_ends.put(Lane(0, SloClass.LATENCY, Bucket.SHORT), b"\xff\x00 not a job")
    await both_ends.submit(job)
    bad, good = await queue.claim(plan())
    assert isinstance(bad, Unreadable)
    assert bad.job_id is None
    assert not isinstance(good, Unreadable)
    await queue.bury(bad)
    (letter,) = await both_ends.dead()
    assert letter == {"job_id": None, "error": "unreadable", "data": b"\xff\x00 not a job"}
    assert await queue.renew([good]) == []
    assert sum(depth.pending for depth in await queue.depths()) == 1


async def test_a_job_that_cannot_be_read_fails_for_its_consumer(both_ends: Installation) -> None:
    """Where the entry says whose job it was, its consumer is told."""
    queue, job = await both_ends.queue(), make_job()
    await both_ends.put(Lane(0, SloClass.LATENCY, Bucket.SHORT), b"broken", job.id)
    (bad,) = await queue.claim(plan())
    assert isinstance(bad, Unreadable)
    assert bad.job_id == job.id
    await queue.bury(bad)
    await queue.bury(bad)
    result = await both_ends.result(job.id)
    assert result is not None
    assert isinstance(result.outcome, Failed)
    assert result.outcome.error.code == "unreadable"
    assert len(await both_ends.dead()) == 1


# --- cancelling ---------------------------------------------------------------


@pytest.mark.case("B31")
async def test_a_waiting_job_is_cancelled_at_once(both_ends: Installation) -> None:
    """No worker is needed for it; none gets the job afterwards."""
    job = make_job()
    await both_ends.submit(job)
    assert await both_ends.cancel(job.id) == "cancelled"
    result = await both_ends.result(job.id)
    assert result is not None
    assert isinstance(result.outcome, Cancelled)
    assert await take(await both_ends.queue()) == []
    assert await both_ends.cancel(job.id) == "cancelled"


@pytest.mark.parametrize("place", ["returned", "held"])
async def test_a_job_that_came_back_is_cancelled_at_once(both_ends: Installation, place: str) -> None:
    """Also one that was handed back, or waits out its back-off."""
    queue, job = await both_ends.queue(), make_job()
    await both_ends.submit(job)
    (claim,) = await take(queue)
    if place == "held":
        await queue.retry(claim, ERROR, 0)
    else:
        await queue.hand_back([claim])
    assert await both_ends.cancel(job.id) == "cancelled"
    assert await take(queue) == []
    assert sum(depth.waiting + depth.pending for depth in await queue.depths()) == 0


async def test_a_job_in_hand_is_cancelled_through_its_worker(both_ends: Installation) -> None:
    """Every worker hears of it within the call that waits, and the job stays with its owner."""
    queue, other, job = await both_ends.queue("a"), await both_ends.queue("b"), make_job()
    await both_ends.submit(job)
    (claim,) = await take(queue)
    listening = [asyncio.create_task(each.controls(5.0)) for each in (queue, other)]
    assert await both_ends.cancel(job.id) == "claimed"
    assert await asyncio.gather(*listening) == [[CancelJob(job_id=job.id)]] * 2
    assert await both_ends.result(job.id) is None
    assert await queue.renew([claim]) == []


async def test_a_claim_tells_that_a_cancel_came_before(both_ends: Installation) -> None:
    """A cancel that its worker never obeyed is seen by the next one."""
    queue, job = await both_ends.queue(), make_job()
    await both_ends.submit(job)
    claims = await take(queue)
    await both_ends.cancel(job.id)
    await queue.hand_back(claims)
    (again,) = await take(queue)
    assert again.cancelled

"""What every `JobQueue` promises: one suite for the queue in memory and for each server there is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from tests.conftest import NAMES, Servers
from tests.support.builders import completed, failed, make_job
from tests.support.installations import (
    SHORT_LEASE_S,
    Installation,
    MemoryInstallation,
    RedisInstallation,
    plan,
    take,
)
from tests.support.wait import wait_until

from laneway.schemas.cards import AttachJob, CancelJob, ModelCard, WorkerCard
from laneway.schemas.events import Ended
from laneway.schemas.ids import JobId, WorkerId
from laneway.schemas.job import Bucket, SloClass
from laneway.schemas.keys import Lane, lanes
from laneway.schemas.outcome import Cancelled, Completed, Failed, JobError
from laneway.schemas.state import JobState
from laneway.worker.errors import QueueUnfit
from laneway.worker.ports import JobQueue, Settlement, Unreadable

pytestmark = pytest.mark.unfinished

ERROR = JobError(code="engine_died", message="the engine died")


@pytest.fixture(params=["memory", *(pytest.param(name, marks=pytest.mark.redis) for name in NAMES)])
async def both_ends(
    request: pytest.FixtureRequest, servers: Servers, namespace: str
) -> AsyncIterator[Installation]:
    """A fresh queue, its producer's end and any number of workers' ends."""
    made: MemoryInstallation | RedisInstallation
    if request.param == "memory":
        made = MemoryInstallation()
    else:
        made = RedisInstallation(servers.get(request.param).url, namespace)
    yield made
    await made.close()


async def reclaimed(queue: JobQueue) -> int:
    """How many lapsed jobs were offered again, once there are any."""
    return await wait_until(queue.reclaim, "a lapsed lease")


# --- claiming -----------------------------------------------------------------


async def test_a_claim_holds_the_whole_job(both_ends: Installation) -> None:
    """What a worker gets is what was submitted, with where and when."""
    queue, job = await both_ends.queue(), make_job(metadata={"custom_id": "7"}, reply_to="out")
    await both_ends.submit(job)
    (claim,) = await take(queue)
    assert claim.job == job
    assert claim.lane == Lane(0, SloClass.LATENCY, Bucket.SHORT)
    assert (claim.attempt, claim.failures, claim.losses, claim.cancelled) == (1, 0, 0, False)
    assert claim.outputs == ("out",)
    assert 0 <= claim.claimed_ms - claim.submitted_ms < 5000
    assert abs(queue.now_ms() - claim.claimed_ms) < 5000


async def test_a_job_is_claimed_once(both_ends: Installation) -> None:
    """Two workers that claim at once share the jobs, and none gets one twice."""
    first, second = await both_ends.queue("a"), await both_ends.queue("b")
    jobs = [make_job() for _ in range(20)]
    await both_ends.submit(*jobs)
    parts = await asyncio.gather(*(take(queue, 7) for queue in (first, second, first, second)))
    ids = [claim.job.id for part in parts for claim in part]
    assert sorted(ids) == sorted(job.id for job in jobs)


async def test_jobs_submitted_before_any_worker_are_found(both_ends: Installation) -> None:
    """A lane needs no reader to keep what is put into it."""
    await both_ends.submit(make_job())
    assert len(await take(await both_ends.queue())) == 1


async def test_a_lane_is_first_in_first_out(both_ends: Installation) -> None:
    """Jobs of one class and bucket leave in the order in which they were accepted."""
    queue, jobs = await both_ends.queue(), [make_job() for _ in range(5)]
    await both_ends.submit(*jobs)
    assert [claim.job.id for claim in await take(queue, 3)] == [job.id for job in jobs[:3]]
    assert [claim.job.id for claim in await take(queue, 3)] == [job.id for job in jobs[3:]]


async def test_the_total_is_exact_over_all_lanes(both_ends: Installation) -> None:
    """A claim never brings more than the plan's total, however many lanes have work."""
    queue = await both_ends.queue()
    for slo in SloClass:
        for bucket in Bucket:
            await both_ends.submit(*(make_job(slo=slo.value, bucket=bucket.value) for _ in range(3)))
    claims = await take(queue, 8)
    assert len(claims) == 8
    assert all(claim.job.slo is SloClass.LATENCY for claim in claims)


async def test_stages_are_served_in_order_within_their_caps(both_ends: Installation) -> None:
    """Latency jobs go first; throughput jobs get what is left, and no more than their cap."""
    queue = await both_ends.queue()
    await both_ends.submit(*(make_job(slo="throughput") for _ in range(9)), make_job(), make_job())
    classes = [claim.job.slo.value for claim in await take(queue, 8, throughput=4)]
    assert classes == ["latency"] * 2 + ["throughput"] * 4


async def test_an_empty_plan_takes_nothing(both_ends: Installation) -> None:
    """No seat, no job."""
    queue = await both_ends.queue()
    await both_ends.submit(make_job())
    assert await queue.claim(plan(0)) == []
    assert await take(queue, 5, throughput=0) != []


async def test_each_partition_has_lanes_of_its_own(both_ends: Installation) -> None:
    """A claim looks into the partition that its plan names."""
    queue, jobs = await both_ends.queue(partitions=2), [make_job(partition=p) for p in range(2)]
    await both_ends.submit(*jobs)
    assert [claim.job.id for claim in await take(queue, partition=1)] == [jobs[1].id]
    assert [claim.job.id for claim in await take(queue, partition=0)] == [jobs[0].id]


async def test_a_large_job_travels_beside_its_lane(both_ends: Installation) -> None:
    """A body of a megabyte arrives whole."""
    queue, job = await both_ends.queue(), make_job(prompt="x" * 1_000_000)
    await both_ends.submit(job)
    assert [claim.job for claim in await take(queue)] == [job]


async def test_the_deadline_counts_from_acceptance(both_ends: Installation) -> None:
    """A claim tells by the worker's own clock when the job expires."""
    queue = await both_ends.queue()
    await both_ends.submit(make_job(deadline_ms=60_000))
    (claim,) = await take(queue)
    assert claim.deadline is not None
    assert 50 < claim.deadline - time.monotonic() <= 60


async def test_an_id_submitted_twice_is_one_job(both_ends: Installation) -> None:
    """An uncertain submit can be repeated: the second time changes nothing."""
    queue, job = await both_ends.queue(), make_job()
    await both_ends.submit(job, job)
    assert len(await take(queue)) == 1


# --- settling -----------------------------------------------------------------


async def test_settling_stores_the_result_and_ends_the_job(both_ends: Installation) -> None:
    """Afterwards the result can be read any number of times, and nothing of the job is left to claim."""
    queue, job = await both_ends.queue(), make_job()
    await both_ends.submit(job)
    (claim,) = await take(queue)
    assert await queue.settle(claim, completed(job.id)) is Settlement.STORED
    for _ in range(2):
        result = await both_ends.result(job.id)
        assert result is not None
        assert isinstance(result.outcome, Completed)
    record = await both_ends.record(job.id)
    assert record is not None
    assert record.state is JobState.COMPLETED
    assert record.ended >= record.claimed > 0
    assert await take(queue) == []
    assert sum(depth.waiting + depth.pending for depth in await queue.depths()) == 0


async def test_settling_again_is_recognised(both_ends: Installation) -> None:
    """A worker that did not hear the reply may ask again; the first outcome stays."""
    queue, job = await both_ends.queue(), make_job()
    await both_ends.submit(job)
    (claim,) = await take(queue)
    await queue.settle(claim, completed(job.id, "first"))
    assert await queue.settle(claim, completed(job.id, "second")) is Settlement.REPEATED
    result = await both_ends.result(job.id)
    assert result is not None
    assert result.text == "first"


async def test_many_settlements_at_once_are_all_stored(both_ends: Installation) -> None:
    """Concurrent calls do not mix their answers up."""
    queue, jobs = await both_ends.queue(), [make_job() for _ in range(100)]
    await both_ends.submit(*jobs)
    claims = await take(queue, 100)
    answers = await asyncio.gather(
        *(queue.settle(claim, completed(claim.job.id, claim.job.id)) for claim in claims)
    )
    assert set(answers) == {Settlement.STORED}
    for job in jobs:
        result = await both_ends.result(job.id)
        assert result is not None
        assert result.text == job.id


async def test_a_former_owner_cannot_settle(both_ends: Installation) -> None:
    """Once a later attempt has begun, the earlier one is refused and changes nothing."""
    slow, fast = await both_ends.queue("slow", lease_s=SHORT_LEASE_S), await both_ends.queue("fast")
    other = await both_ends.queue("other", lease_s=SHORT_LEASE_S)
    job = make_job()
    await both_ends.submit(job)
    (stale,) = await take(slow)
    await reclaimed(other)
    (fresh,) = await take(fast)
    assert await slow.settle(stale, completed(job.id, "stale")) is Settlement.FENCED
    assert await both_ends.result(job.id) is None
    assert await fast.settle(fresh, completed(job.id, "fresh", fresh.attempt)) is Settlement.STORED
    assert await slow.settle(stale, completed(job.id, "stale")) is Settlement.FENCED
    result = await both_ends.result(job.id)
    assert result is not None
    assert result.text == "fresh"


async def test_a_lapsed_attempt_that_nobody_took_over_may_still_settle(both_ends: Installation) -> None:
    """Work that is done is not thrown away while no other attempt has begun."""
    queue, other = await both_ends.queue("a"), await both_ends.queue("b", lease_s=SHORT_LEASE_S)
    job = make_job()
    await both_ends.submit(job)
    (claim,) = await take(queue)
    await reclaimed(other)
    assert await queue.settle(claim, completed(job.id)) is Settlement.STORED
    assert await take(other) == []


# --- leases -------------------------------------------------------------------


async def test_a_lapsed_lease_offers_the_job_again_in_front(both_ends: Installation) -> None:
    """A silent worker's jobs go to others, ahead of what was submitted later, and the loss is counted."""
    dead, alive = await both_ends.queue("dead"), await both_ends.queue("alive", lease_s=SHORT_LEASE_S)
    first, later = make_job(), make_job()
    await both_ends.submit(first)
    await take(dead)
    await both_ends.submit(later)
    assert await reclaimed(alive) == 1
    record = await both_ends.record(first.id)
    assert record is not None
    assert record.state is JobState.QUEUED
    claims = await take(alive)
    assert [claim.job.id for claim in claims] == [first.id, later.id]
    assert (claims[0].attempt, claims[0].losses, claims[0].failures) == (2, 1, 0)


async def test_a_lease_that_runs_is_left_alone(both_ends: Installation) -> None:
    """Reclaiming takes nothing from a worker that is alive."""
    queue, other = await both_ends.queue("a"), await both_ends.queue("b")
    await both_ends.submit(make_job())
    assert len(await take(queue)) == 1
    assert await other.reclaim() == 0
    assert await take(other) == []


async def test_renewing_keeps_a_job(both_ends: Installation) -> None:
    """A job that is renewed in time is never offered to others."""
    queue, other = await both_ends.queue("a"), await both_ends.queue("b", lease_s=2 * SHORT_LEASE_S)
    await both_ends.submit(make_job(), make_job(slo="throughput"))
    claims = await take(queue)
    until = time.monotonic() + 4 * SHORT_LEASE_S

    async def renewed_long_enough() -> bool:
        assert await queue.renew(claims) == []
        assert await other.reclaim() == 0
        return time.monotonic() > until

    await wait_until(renewed_long_enough)


async def test_renewing_tells_what_is_lost_and_takes_nothing_back(both_ends: Installation) -> None:
    """A job that somebody else has in hand stays his."""
    slow, fast = await both_ends.queue("slow"), await both_ends.queue("fast", lease_s=SHORT_LEASE_S)
    job, kept = make_job(), make_job()
    await both_ends.submit(job)
    (stale,) = await take(slow)
    await reclaimed(fast)
    (fresh,) = await take(fast)
    await both_ends.submit(kept)
    (own,) = await take(slow)
    assert await slow.renew([own, stale]) == [job.id]
    assert await fast.renew([fresh]) == []


async def test_a_settled_job_is_lost_to_whoever_renews_it(both_ends: Installation) -> None:
    """Nothing is left to hold on to."""
    queue, job = await both_ends.queue(), make_job()
    await both_ends.submit(job)
    (claim,) = await take(queue)
    await queue.settle(claim, completed(job.id))
    assert await queue.renew([claim]) == [job.id]


async def test_many_leases_are_renewed_at_once(both_ends: Installation) -> None:
    """There is no limit on how many jobs one call renews, over all lanes."""
    queue = await both_ends.queue()
    await both_ends.submit(*(make_job(slo=("latency", "throughput")[n % 2]) for n in range(600)))
    claims = await take(queue, 600)
    assert len(claims) == 600
    assert await queue.renew(claims[::-1]) == []


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


# --- telling ------------------------------------------------------------------


async def test_events_reach_every_output_that_is_read(both_ends: Installation) -> None:
    """And the worker learns which outputs nobody reads."""
    queue, ends = await both_ends.queue(), [Ended(job_id=JobId("j"), attempt=1, state="completed")]
    await both_ends.listen("out-1-" + "x" * 8)
    unread = await queue.publish({"out-1-" + "x" * 8: ends, "out-2": ends})
    assert unread == {"out-2"}
    assert await both_ends.heard("out-1-" + "x" * 8) == ends


async def test_an_attachment_is_seen_by_the_worker_and_by_later_claims(both_ends: Installation) -> None:
    """A consumer that comes later gets the events of this attempt and of every further one."""
    queue, job = await both_ends.queue(), make_job(reply_to="first")
    await both_ends.submit(job)
    claims = await take(queue)
    await both_ends.attach(job.id, "second")
    assert await queue.controls(5.0) == [AttachJob(job_id=job.id, output="second")]
    await queue.hand_back(claims)
    (again,) = await take(queue)
    assert again.outputs == ("first", "second")


async def test_controls_begin_with_the_worker(both_ends: Installation) -> None:
    """A new worker is not told what was said before it came, and a quiet wait ends by itself."""
    queue, job = await both_ends.queue("a"), make_job()
    await both_ends.submit(job)
    await take(queue)
    await both_ends.cancel(job.id)
    late = await both_ends.queue("late")
    assert await late.controls(0.05) == []
    assert await queue.controls(0.05) != []
    assert await queue.controls(0.05) == []


async def test_waiting_ends_when_a_job_arrives(both_ends: Installation) -> None:
    """The bell rings for a submit, well before the time-out."""
    queue = await both_ends.queue()
    waiting = asyncio.create_task(queue.wait(30.0))
    await asyncio.sleep(0)
    await both_ends.submit(make_job())
    async with asyncio.timeout(5):
        await waiting
    await take(queue)


async def test_waiting_ends_when_a_job_is_handed_back(both_ends: Installation) -> None:
    """Another worker need not poll for it."""
    queue, other = await both_ends.queue("a"), await both_ends.queue("b")
    await both_ends.submit(make_job())
    claims = await take(queue)
    await other.wait(0.01)
    waiting = asyncio.create_task(other.wait(30.0))
    await asyncio.sleep(0)
    await queue.hand_back(claims)
    async with asyncio.timeout(5):
        await waiting
    assert len(await take(other)) == 1


async def test_a_start_shows_in_the_record(both_ends: Installation) -> None:
    """While the engine has the job its state is `running`; a start told too late changes nothing."""
    queue, job = await both_ends.queue(), make_job()
    await both_ends.submit(job)
    (claim,) = await take(queue)
    record = await both_ends.record(job.id)
    assert record is not None
    assert (record.state, record.owner) == (JobState.CLAIMED, "a")
    await queue.start(claim)
    record = await both_ends.record(job.id)
    assert record is not None
    assert record.state is JobState.RUNNING
    assert record.started >= record.claimed
    await queue.settle(claim, completed(job.id))
    await queue.start(claim)
    record = await both_ends.record(job.id)
    assert record is not None
    assert record.state is JobState.COMPLETED


async def test_depths_tell_waiting_from_in_hand(both_ends: Installation) -> None:
    """Per lane; what was handed back or is in its back-off waits; the oldest is told."""
    queue, jobs = await both_ends.queue(), [make_job(slo="throughput") for _ in range(5)]
    await both_ends.submit(*jobs)
    claims = await take(queue, 3)
    await queue.hand_back(claims[:1])
    await queue.retry(claims[1], ERROR, 60_000)
    depths = {depth.lane: depth for depth in await queue.depths()}
    assert list(depths) == list(lanes(0))
    busy = depths[Lane(0, SloClass.THROUGHPUT, Bucket.SHORT)]
    assert (busy.waiting, busy.pending) == (4, 1)
    assert abs(busy.oldest_ms - claims[0].submitted_ms) < 1000
    quiet = depths[Lane(0, SloClass.LATENCY, Bucket.LONG)]
    assert (quiet.waiting, quiet.pending, quiet.oldest_ms) == (0, 0, 0)


async def test_a_beat_is_accepted(both_ends: Installation) -> None:
    """A worker says what it is."""
    queue = await both_ends.queue()
    await queue.beat(WorkerCard(id=WorkerId("a"), model="demo"))


# --- opening ------------------------------------------------------------------


async def test_opening_again_updates_the_model_and_keeps_the_jobs(both_ends: Installation) -> None:
    """A worker opens the queue before its engine is up, and once more when it knows more."""
    queue = await both_ends.queue()
    await both_ends.submit(make_job())
    await queue.open(ModelCard(name="demo", context_tokens=4096))
    assert len(await take(queue)) == 1


async def test_workers_that_disagree_on_partitions_are_refused(both_ends: Installation) -> None:
    """Jobs in a partition that nobody reads would wait for ever."""
    await both_ends.queue(partitions=2)
    with pytest.raises(QueueUnfit, match="partitions: expected 2"):
        await both_ends.queue(partitions=3)

"""What every `JobQueue` promises of claims, outcomes and leases: one suite for memory and for each server there is."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.support.builders import completed, make_job
from tests.support.installations import (
    SHORT_LEASE_S,
    Installation,
    plan,
    take,
)
from tests.support.steps import reclaimed
from tests.support.wait import wait_until

from laneway.schemas.job import Bucket, SloClass
from laneway.schemas.keys import Lane
from laneway.schemas.outcome import Completed, JobError
from laneway.schemas.state import JobState
from laneway.worker.ports import Settlement

pytestmark = pytest.mark.unfinished

ERROR = JobError(code="engine_died", message="the engine died")


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


@pytest.mark.case("A11")
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


@pytest.mark.case("C35")
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


@pytest.mark.case("A5")
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
    await dead.start(*await take(dead))
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


@pytest.mark.case("A5")
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

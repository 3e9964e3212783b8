"""What every `JobQueue` promises of what it tells and hears, and of its opening."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.builders import completed, make_job
from tests.support.installations import (
    Installation,
    take,
)

from laneway.schemas.cards import AttachJob, Floor, ModelCard, WorkerCard
from laneway.schemas.events import Ended
from laneway.schemas.ids import JobId, WorkerId
from laneway.schemas.job import Bucket, SloClass
from laneway.schemas.keys import Lane, lanes
from laneway.schemas.outcome import JobError
from laneway.schemas.state import JobState
from laneway.worker.errors import QueueUnfit

pytestmark = pytest.mark.unfinished

ERROR = JobError(code="engine_died", message="the engine died")


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


async def test_a_model_is_told_with_the_lowest_floor_of_its_workers(both_ends: Installation) -> None:
    """A producer may refuse by it: it must hold for whichever worker takes the job."""
    queue = await both_ends.queue()
    for token_s in (0.02, 0.01, 0.03):
        await queue.open(ModelCard(name="demo", context_tokens=4096, floor=Floor(token_s=token_s)))
    other = await both_ends.queue("b")  # its engine is not up yet
    await other.open(ModelCard(name="demo"))
    assert (await both_ends.model()).floor == Floor(token_s=0.01)


async def test_workers_that_disagree_on_partitions_are_refused(both_ends: Installation) -> None:
    """Jobs in a partition that nobody reads would wait for ever."""
    await both_ends.queue(partitions=2)
    with pytest.raises(QueueUnfit, match="partitions: expected 2"):
        await both_ends.queue(partitions=3)

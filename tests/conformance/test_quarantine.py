"""What every `JobQueue` promises of jobs that were in hand at crashes: nobody is blamed but whoever was alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.support.builders import completed, make_job
from tests.support.installations import (
    SHORT_LEASE_S,
    Installation,
    take,
)
from tests.support.wait import wait_until

from laneway.schemas.ids import JobId
from laneway.schemas.outcome import JobError
from laneway.schemas.state import JobState
from laneway.worker.policy.quarantine import GROUPS
from laneway.worker.ports import Claim, JobQueue, Settlement

pytestmark = pytest.mark.unfinished

ERROR = JobError(code="engine_died", message="the engine died")


async def crash(queue: JobQueue, claims: Sequence[Claim]) -> None:
    """The engine dies with those jobs in it."""
    for claim in claims:
        assert await queue.lose(claim, ERROR)


async def group(queue: JobQueue) -> list[Claim]:
    """The next suspects for a worker whose engine is empty."""
    return [claim for claim in await queue.isolate(0, empty=True) or () if isinstance(claim, Claim)]


async def suspects(both_ends: Installation, queue: JobQueue, count: int) -> list[JobId]:
    """Jobs that were in hand at two crashes."""
    jobs = [make_job() for _ in range(count)]
    await both_ends.submit(*jobs)
    for _ in range(2):
        await crash(queue, await take(queue))
    assert await take(queue) == []
    return [job.id for job in jobs]


async def test_a_first_crash_proves_nothing(both_ends: Installation) -> None:
    """The job is offered again at once, among others; the loss is counted and is no failure."""
    queue = await both_ends.queue()
    job = make_job()
    await both_ends.submit(job)
    await crash(queue, await take(queue))
    record = await both_ends.record(job.id)
    assert record is not None
    assert record.state is JobState.RETRYING
    (again,) = await take(queue)
    assert (again.attempt, again.losses, again.failures, again.isolated) == (2, 1, 0, False)
    assert await queue.isolate(0, empty=True) is None


async def test_suspects_wait_for_an_engine_of_their_own_in_ever_smaller_groups(
    both_ends: Installation,
) -> None:
    """Twenty jobs and a killer among them: after each crash fewer share an engine, until one is alone with it."""
    queue = await both_ends.queue()
    await suspects(both_ends, queue, 20)
    for size in (*GROUPS, 1):
        held = await group(queue)
        assert len(held) == size
        assert [claim.isolated for claim in held] == [size == 1] * size
        await crash(queue, held)
        await take(queue)
        # Those of other groups come first; they are harmless and complete.
        while len(rest := await group(queue)) and rest[0].losses < held[0].losses + 1:
            for claim in rest:
                await queue.settle(claim, completed(claim.job.id, attempt=claim.attempt))
        await queue.hand_back(rest)
        await take(queue)


async def test_a_bystander_leaves_the_quarantine_by_completing(both_ends: Installation) -> None:
    """It is settled like any other job, and no suspect is left."""
    queue = await both_ends.queue()
    jobs = await suspects(both_ends, queue, 3)
    held = await group(queue)
    assert sorted(claim.job.id for claim in held) == sorted(jobs)
    for claim in held:
        result = completed(claim.job.id, attempt=claim.attempt)
        assert await queue.settle(claim, result) is Settlement.STORED
    assert await queue.isolate(0, empty=True) is None


async def test_one_worker_at_a_time_empties_its_engine_for_suspects(both_ends: Installation) -> None:
    """The others go on; whoever has an empty engine already may take a group."""
    first, second = await both_ends.queue("a"), await both_ends.queue("b")
    await suspects(both_ends, first, 3)
    assert await first.isolate(0, empty=False) == []
    assert await second.isolate(0, empty=False) is None
    assert await first.isolate(0, empty=False) == []
    assert len(await group(second)) == 3
    assert await first.isolate(0, empty=False) is None


async def test_a_suspect_that_vanishes_with_its_worker_is_counted_as_alone(both_ends: Installation) -> None:
    """Nobody saw the engine die: the lease lapses, and the record tells that no other job was there."""
    queue = await both_ends.queue(lease_s=SHORT_LEASE_S)
    await suspects(both_ends, queue, 1)
    (held,) = await group(queue)
    assert (held.losses, held.alone, held.isolated) == (2, 0, True)
    await wait_until(queue.reclaim, "a lapsed lease")
    assert await take(queue) == []
    (again,) = await group(queue)
    assert (again.losses, again.alone) == (3, 1)


async def test_a_suspect_can_be_cancelled_where_it_waits(both_ends: Installation) -> None:
    """Nobody has it in hand: the cancel itself settles it."""
    queue = await both_ends.queue()
    (job,) = await suspects(both_ends, queue, 1)
    assert await both_ends.cancel(job) in ("cancelled", JobState.CANCELLED)
    assert await queue.isolate(0, empty=True) is None

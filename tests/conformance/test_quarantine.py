"""What every `JobQueue` promises of jobs that were in hand at crashes: nobody is blamed but whoever was alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.support.builders import completed, make_job
from tests.support.installations import Installation, take

from laneway.schemas.ids import JobId
from laneway.schemas.outcome import JobError
from laneway.schemas.record import Kept
from laneway.schemas.state import JobState
from laneway.worker.policy.quarantine import GROUPS, SEEN, SILENT, SUSPECT, UNBEGUN
from laneway.worker.ports import Addition, Claim, JobQueue, Settlement

pytestmark = pytest.mark.unfinished

ERROR = JobError(code="engine_died", message="the engine died")


async def crash(queue: JobQueue, claims: Sequence[Claim]) -> None:
    """The engine dies with those jobs in it."""
    for claim in claims:
        assert await queue.lose(claim, ERROR)


async def group(queue: JobQueue) -> list[Claim]:
    """The next suspects for a worker whose engine is empty, and that has nothing else to do."""
    return [c for c in await queue.isolate(0, empty=True, idle=True) or () if isinstance(c, Claim)]


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


@pytest.mark.case("A7")
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


async def test_one_worker_at_a_time_is_appointed_to_the_suspects(both_ends: Installation) -> None:
    """It stays so from group to group, until none is left; whoever is idle may take a group too."""
    first, second = await both_ends.queue("a"), await both_ends.queue("b")
    await suspects(both_ends, first, 3 * GROUPS[0])
    assert await first.isolate(0, empty=False) == []
    assert await second.isolate(0, empty=False) is None
    assert await first.isolate(0, empty=False) == []
    assert len(await group(first)) == GROUPS[0]
    assert await first.isolate(0, empty=False) == []
    assert await second.isolate(0, empty=False) is None
    assert await second.isolate(0, empty=True) is None
    assert len(await second.isolate(0, empty=True, idle=True) or ()) == GROUPS[0]
    assert await second.isolate(0, empty=False) is None
    assert len(await group(first)) == GROUPS[0]
    assert await group(first) == []
    await suspects(both_ends, first, 1)
    assert await second.isolate(0, empty=False) == []


async def test_an_engine_that_is_empty_goes_before_one_that_is_to_become_so(both_ends: Installation) -> None:
    """An appointed worker may wait long for its last job; one that comes up empty takes the suspects off it."""
    first, second = await both_ends.queue("a"), await both_ends.queue("b")
    await suspects(both_ends, first, GROUPS[0] + 1)
    assert await first.isolate(0, empty=False) == []
    assert len(await second.isolate(0, empty=True) or ()) == GROUPS[0]
    assert await first.isolate(0, empty=False) is None
    assert await second.isolate(0, empty=False) == []


async def test_an_engine_that_runs_suspects_goes_before_one_that_is_to_become_empty(
    both_ends: Installation,
) -> None:
    """New suspects while a group runs: its worker takes them next, and a second engine is not kept from other work."""
    first, second = await both_ends.queue("a", lease_s=0.05), await both_ends.queue("b")
    await suspects(both_ends, first, GROUPS[0])
    held = await group(first)
    await suspects(both_ends, second, 1)
    while await second.isolate(0, empty=False) is None:  # until the first one's appointment lapses
        pass
    assert await first.isolate(0, empty=False) is None
    assert await first.isolate(0, empty=False, beside=held) == []
    assert await second.isolate(0, empty=False) is None
    assert await second.isolate(0, empty=True) is None


async def vanish(both_ends: Installation, queue: JobQueue, worker: str = "a") -> None:
    """The worker falls silent, and its lease lapses."""
    await both_ends.lapse(worker)
    assert await queue.reclaim()
    assert await take(queue) == []


async def test_a_suspect_that_vanishes_with_its_worker_is_counted_as_alone(both_ends: Installation) -> None:
    """Nobody saw the engine die: the lease lapses, and the record tells that no other job was there. It weighs little."""
    queue = await both_ends.queue()
    await suspects(both_ends, queue, 1)
    (held,) = await group(queue)
    assert (held.losses, held.evidence, held.isolated) == (2, 0, True)
    await queue.start(held)
    await vanish(both_ends, queue)
    (again,) = await group(queue)
    assert (again.losses, again.evidence) == (3, SILENT)


async def test_a_suspect_whose_engine_is_seen_to_die_is_weighed_as_such(both_ends: Installation) -> None:
    """The worker lives to tell it."""
    queue = await both_ends.queue()
    await suspects(both_ends, queue, 1)
    await crash(queue, await group(queue))
    assert await take(queue) == []
    (again,) = await group(queue)
    assert (again.losses, again.evidence) == (3, SEEN)


async def test_nothing_weighs_against_suspects_that_shared_an_engine(both_ends: Installation) -> None:
    """Two of them: one may be the killer, and the other was beside it."""
    queue = await both_ends.queue()
    await suspects(both_ends, queue, 2)
    first, second = await group(queue)
    await queue.start(second)
    await crash(queue, [first])
    await vanish(both_ends, queue)
    for claim in await group(queue):
        assert (claim.losses, claim.evidence) == (3, 0)


async def test_a_suspect_of_which_its_worker_never_heard_is_not_weighed(both_ends: Installation) -> None:
    """The reply is lost and the lease lapses: the attempt had not begun, and nothing is counted, however often."""
    queue = await both_ends.queue()
    await suspects(both_ends, queue, 1)
    for _ in range(10):
        assert len(await group(queue)) == 1
        await vanish(both_ends, queue)
    (held,) = await group(queue)
    assert (held.losses, held.evidence, held.attempt) == (2, 0, 13)


async def test_claims_that_nobody_began_count_as_a_crash_only_together(both_ends: Installation) -> None:
    """One is a lost reply; so many of one job may be its own doing, too quick for the note that it had begun."""
    queue = await both_ends.queue()
    await both_ends.submit(make_job())
    losses = []
    for _ in range(SUSPECT * UNBEGUN):
        (claim,) = await take(queue)
        losses.append(claim.losses)
        await both_ends.lapse("a")
        assert await queue.reclaim() == 1
    assert losses == [crash for crash in range(SUSPECT) for _ in range(UNBEGUN)]
    assert await take(queue) == []
    assert len(await group(queue)) == 1


async def test_others_join_a_group_that_is_not_full_any_more(both_ends: Installation) -> None:
    """As members complete: as many as the group may be, of equally many crashes, and for the appointed worker alone."""
    queue, other = await both_ends.queue(), await both_ends.queue("b")
    await suspects(both_ends, queue, 12)
    assert await queue.isolate(0, empty=False) == []
    held = await group(queue)
    assert await queue.isolate(0, empty=True, beside=held) is None
    for done in held[:3]:
        await queue.settle(done, completed(done.job.id, attempt=done.attempt))
    assert await other.isolate(0, empty=True, beside=held[3:]) is None
    more = await queue.isolate(0, empty=True, beside=held[3:]) or []
    assert [claim.isolated for claim in more if isinstance(claim, Claim)] == [False] * 3
    await crash(other, await group(other))
    await take(other)
    assert await queue.isolate(0, empty=True, beside=held[4:]) is None


async def test_a_suspect_that_gets_further_each_time_is_not_weighed(both_ends: Installation) -> None:
    """A long job, and an operator who kills its worker again and again: it is on its way. Standing still is what weighs."""
    queue = await both_ends.queue()
    await suspects(both_ends, queue, 1)
    for number, further in enumerate((True, True, True, False, True, False)):
        (held,) = await group(queue)
        await queue.start(held)
        if further:
            event = Kept(attempt=held.attempt, text="word", token_ids=(number,))
            await queue.keep([Addition(held, len(held.kept), [event])])
        await vanish(both_ends, queue)
    (held,) = await group(queue)
    assert (held.losses, held.evidence, len(held.kept)) == (8, 2 * SILENT, 4)


async def test_a_suspect_handed_back_is_not_weighed(both_ends: Installation) -> None:
    """A drain is no crash."""
    queue = await both_ends.queue()
    await suspects(both_ends, queue, 1)
    held = await group(queue)
    await queue.start(held[0])
    await queue.hand_back(held)
    assert await take(queue) == []
    (again,) = await group(queue)
    assert (again.losses, again.evidence) == (2, 0)


async def test_a_former_owner_cannot_blame_its_job(both_ends: Installation) -> None:
    """It was frozen past its lease, and its engine died after that: another worker has the job by then."""
    slow, quick = await both_ends.queue("slow"), await both_ends.queue("quick")
    await suspects(both_ends, slow, 1)
    (stale,) = await group(slow)
    await vanish(both_ends, quick, "slow")
    (held,) = await group(quick)
    assert not await slow.lose(stale, ERROR)
    await crash(quick, [held])
    await take(quick)
    (again,) = await group(quick)
    assert (again.losses, again.evidence) == (3, SEEN)


async def test_a_crash_told_twice_counts_once(both_ends: Installation) -> None:
    """The reply to the first telling was lost. The second one succeeds, also when the job is in other hands by then."""
    queue, other = await both_ends.queue(), await both_ends.queue("b")
    await suspects(both_ends, queue, 1)
    (held,) = await group(queue)
    await crash(queue, [held, held])
    await take(other)
    (again,) = await group(other)
    await crash(queue, [held])
    assert (again.losses, again.evidence) == (3, SEEN)
    result = completed(again.job.id, attempt=again.attempt)
    assert await other.settle(again, result) is Settlement.STORED


@pytest.mark.case("A7")
async def test_a_suspect_can_be_cancelled_where_it_waits(both_ends: Installation) -> None:
    """Nobody has it in hand: the cancel itself settles it."""
    queue = await both_ends.queue()
    (job,) = await suspects(both_ends, queue, 1)
    assert await both_ends.cancel(job) in ("cancelled", JobState.CANCELLED)
    assert await queue.isolate(0, empty=True) is None

"""What every `JobQueue` promises of the token events that it keeps for later attempts."""

from __future__ import annotations

import pytest
from tests.support.builders import completed, make_job
from tests.support.installations import SHORT_LEASE_S, Installation, take
from tests.support.steps import reclaimed

from laneway.schemas.ids import JobId
from laneway.schemas.outcome import JobError
from laneway.schemas.record import Kept
from laneway.worker.ports import Addition, Claim, JobQueue

pytestmark = pytest.mark.unfinished

ERROR = JobError(code="engine_died", message="the engine died")


def words(text: str, attempt: int = 1) -> list[Kept]:
    """One event per word."""
    return [Kept(attempt=attempt, text=word, token_ids=(len(word),)) for word in text.split()]


async def keep(queue: JobQueue, claim: Claim, first: int, text: str) -> int:
    (length,) = await queue.keep([Addition(claim, first, words(text, claim.attempt))])
    return length


async def claimed(both_ends: Installation, queue: JobQueue) -> Claim:
    await both_ends.submit(make_job())
    (claim,) = await take(queue)
    return claim


async def kept_text(queue: JobQueue) -> str:
    """What the next claim finds."""
    (claim,) = await take(queue)
    return " ".join(event.text for event in claim.kept)


@pytest.mark.parametrize("way", ["hand_back", "retry", "lose", "lapse"])
async def test_what_was_kept_comes_with_the_next_claim(both_ends: Installation, way: str) -> None:
    """However the attempt ended, the next one finds its events whole and in order."""
    queue, other = await both_ends.queue("a", lease_s=SHORT_LEASE_S), await both_ends.queue("b")
    claim = await claimed(both_ends, queue)
    assert claim.kept == ()
    assert await keep(queue, claim, 0, "one two") == 2
    assert await keep(queue, claim, 2, "three") == 3
    match way:
        case "hand_back":
            await queue.hand_back([claim])
        case "retry":
            assert await queue.retry(claim, ERROR, 0)
        case "lose":
            assert await queue.lose(claim, ERROR)
        case _:
            await reclaimed(queue)
    (again,) = await take(other)
    assert list(again.kept) == words("one two three")
    assert await keep(other, again, 3, "four") == 4
    await other.hand_back([again])
    (third,) = await take(queue)
    assert list(third.kept) == [*words("one two three"), *words("four", attempt=2)]


async def test_only_the_owner_of_the_latest_attempt_adds(both_ends: Installation) -> None:
    """A worker that woke up too late changes nothing, whether or not somebody has the job by then."""
    queue, other = await both_ends.queue("a"), await both_ends.queue("b")
    claim = await claimed(both_ends, queue)
    assert await keep(queue, claim, 0, "one") == 1
    assert await keep(other, claim, 1, "stolen") == -1
    await queue.hand_back([claim])
    assert await keep(queue, claim, 1, "late") == -1
    (again,) = await take(other)
    assert await keep(queue, claim, 1, "late") == -1
    assert await keep(queue, claim, 0, "late") == -1
    await other.hand_back([again])
    assert await kept_text(queue) == "one"


async def test_an_addition_may_be_repeated(both_ends: Installation) -> None:
    """After a lost reply it is sent again: nothing is there twice, whatever was added to it meanwhile."""
    queue = await both_ends.queue()
    claim = await claimed(both_ends, queue)
    assert await keep(queue, claim, 0, "one two") == 2
    assert await keep(queue, claim, 0, "one two") == 2
    assert await keep(queue, claim, 2, "three") == 3
    assert await keep(queue, claim, 2, "three four") == 4
    assert await keep(queue, claim, 2, "three four") == 4
    await queue.hand_back([claim])
    assert await kept_text(queue) == "one two three four"


async def test_nothing_is_kept_beyond_a_gap(both_ends: Installation) -> None:
    """Where earlier events have vanished the worker learns it; what is there stays a true beginning."""
    queue = await both_ends.queue()
    claim = await claimed(both_ends, queue)
    assert await keep(queue, claim, 0, "one") == 1
    assert await keep(queue, claim, 5, "six") == 1
    await queue.hand_back([claim])
    assert await kept_text(queue) == "one"


async def test_an_answer_may_begin_anew(both_ends: Installation) -> None:
    """An attempt that could not go on from the events replaces them."""
    queue = await both_ends.queue()
    claim = await claimed(both_ends, queue)
    await keep(queue, claim, 0, "one two")
    await queue.hand_back([claim])
    (again,) = await take(queue)
    assert await keep(queue, again, 0, "uno") == 1
    await queue.hand_back([again])
    (third,) = await take(queue)
    assert list(third.kept) == words("uno", attempt=2)


async def test_nothing_is_kept_of_a_job_that_has_ended(both_ends: Installation) -> None:
    """Settled or cancelled: the events are gone, and late ones are not added."""
    queue = await both_ends.queue()
    claim = await claimed(both_ends, queue)
    await keep(queue, claim, 0, "one")
    await queue.settle(claim, completed(claim.job.id))
    assert await both_ends.kept(claim.job.id) == 0
    assert await keep(queue, claim, 1, "two") == 2
    assert await both_ends.kept(claim.job.id) == 0

    claim = await claimed(both_ends, queue)
    await keep(queue, claim, 0, "one")
    await queue.hand_back([claim])
    assert await both_ends.cancel(claim.job.id) == "cancelled"
    assert await keep(queue, claim, 1, "two") == -1
    assert await both_ends.kept(claim.job.id) == 0


async def test_after_a_flush_nothing_is_kept(both_ends: Installation) -> None:
    """Whose job it is is not known any more: it is not lost, but it will have to start again."""
    queue = await both_ends.queue()
    claim = await claimed(both_ends, queue)
    await keep(queue, claim, 0, "one")
    await both_ends.flush()
    assert await keep(queue, claim, 1, "two") == 0
    assert await both_ends.kept(claim.job.id) == 0


async def test_many_jobs_and_events_travel_together(both_ends: Installation) -> None:
    """More than one call's worth: each job gets its own reply."""
    queue = await both_ends.queue()
    await both_ends.submit(*(make_job() for _ in range(150)))
    claims = await take(queue, 150)
    additions = [
        Addition(claim, 0, words("word " * (3000 if number == 70 else 1)))
        for number, claim in enumerate(claims)
    ]
    lengths = await queue.keep(additions)
    assert lengths == [len(addition.events) for addition in additions]
    assert await both_ends.kept(JobId(claims[70].job.id)) == 3000

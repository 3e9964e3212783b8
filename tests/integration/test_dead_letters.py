"""Dead letters: what is kept of jobs that could not be done, how they run again, and how they go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis.asyncio
from tests.support.builders import failed
from tests.support.hand import hand
from tests.support.letters import bury, die, fields, letters
from tests.support.proxy import Proxy

from laneway.producer import (
    InvalidJob,
    LetterNotFound,
    LetterUnreadable,
    Producer,
    QueueFull,
    Submitted,
    SubmitUncertain,
    SyncProducer,
)
from laneway.schemas import JobState
from laneway.schemas.ids import choose_partition, new_job_id, parse_job_id
from laneway.schemas.keys import Keys

pytestmark = pytest.mark.redis


@pytest.fixture
async def server(redis_url: str) -> AsyncIterator[Any]:
    """The server seen from outside."""
    async with redis.asyncio.Redis.from_url(redis_url, protocol=2) as client:
        yield client


# --- looking -----------------------------------------------------------------
async def test_a_letter_is_the_whole_job_and_why_it_ended(each_redis_url: str, namespace: str) -> None:
    """On every supported server: as it was submitted, with the last error, the attempts and the lane."""
    async with (
        hand(each_redis_url, namespace) as worker,
        Producer(each_redis_url, namespace=namespace) as producer,
    ):
        job = await die(worker, producer, lora="poet", metadata={"custom_id": "7"}, slo="throughput")
        (letter,) = await letters(producer)
        assert (letter.id, letter.error, letter.attempts) == (job.id, "engine_died", 1)
        assert letter.lane == "throughput:short"
        assert letter.job is not None
        assert (letter.job.id, letter.job.lora, letter.job.metadata) == (job.id, "poet", {"custom_id": "7"})
        assert abs(letter.at_ms - (await producer.status(job.id)).seen_ms) < 10_000
        assert await producer.dead_letter(job.id) == letter


async def test_letters_of_all_partitions_and_models_are_found(redis_url: str, namespace: str) -> None:
    """Or those of one model; none where it never had any."""
    async with (
        hand(redis_url, namespace, partitions=4) as worker,
        hand(redis_url, namespace, model="other"),
        Producer(redis_url, namespace=namespace) as producer,
    ):
        jobs = [await die(worker, producer, lora=name) for name in ("a", "b", "c", "d", "e", "f")]
        assert len({parse_job_id(job.id)[1] for job in jobs}) > 1
        assert {letter.id for letter in await letters(producer)} == {job.id for job in jobs}
        assert len(await letters(producer, model="demo")) == 6
        assert await letters(producer, model="other") == []
        for job in jobs:
            assert (await producer.dead_letter(job.id)).id == job.id


async def test_letters_are_chosen_by_error_and_by_age(redis_url: str, namespace: str) -> None:
    """By the server's clock."""
    async with hand(redis_url, namespace) as worker, Producer(redis_url, namespace=namespace) as producer:
        died = await die(worker, producer, "engine_died")
        await die(worker, producer, "engine_hung")
        assert [letter.id for letter in await letters(producer, error="engine_died")] == [died.id]
        assert await letters(producer, older_s=3600) == []
        assert len(await letters(producer, older_s=0)) == 2


async def test_more_letters_than_fit_a_page(redis_url: str, namespace: str, server: Any) -> None:
    """In order; those that come during the walk are left for the next one."""
    async with hand(redis_url, namespace) as worker, Producer(redis_url, namespace=namespace) as producer:
        jobs = [(await die(worker, producer)).id for _ in range(70)]
        seen = []
        async for letter in producer.dead_letters():
            seen.append(letter.id)
            if len(seen) == 1:
                await die(worker, producer)
        assert seen == jobs


async def test_what_is_not_there_is_said_to_be_so(redis_url: str, namespace: str) -> None:
    """And what is no id is refused before anybody is asked."""
    async with Producer(redis_url, namespace=namespace) as producer:
        assert await letters(producer) == []
        with pytest.raises(LetterNotFound):
            await producer.dead_letter(new_job_id("demo", 0))
        with pytest.raises(LetterNotFound):
            await producer.dead_letter("0f0f0f0f-000:17-0")
        with pytest.raises(InvalidJob, match="job id"):
            await producer.dead_letter("nonsense")


# --- replay ------------------------------------------------------------------
async def test_a_replayed_job_is_a_new_one(each_redis_url: str, namespace: str) -> None:
    """Its own id, its attempts from the start, its old key not in the way; and the letter is gone."""
    async with (
        hand(each_redis_url, namespace) as worker,
        Producer(each_redis_url, namespace=namespace) as producer,
    ):
        job = await die(worker, producer, idempotency_key="order-1", deadline_ms=60_000)
        again = await producer.replay(await producer.dead_letter(job.id))
        assert again.id != job.id
        assert not again.duplicate
        assert await letters(producer) == []
        claim = await worker.claim_one()
        assert (claim.job.id, claim.attempt, claim.failures) == (again.id, 1, 0)
        assert claim.job.deadline_ms == 60_000
        await worker.finish(claim)
        assert (await producer.result(again.id, timeout=10)).text == "done"
        assert (await producer.status(job.id)).state is JobState.FAILED


async def test_replaying_a_letter_many_times_is_one_job(redis_url: str, namespace: str) -> None:
    """At once and afterwards, by several producers: all of them get the same id."""
    async with (
        hand(redis_url, namespace) as worker,
        Producer(redis_url, namespace=namespace) as one,
        Producer(redis_url, namespace=namespace) as two,
    ):
        job = await die(worker, one)
        letter = await one.dead_letter(job.id)
        answers = await asyncio.gather(*(producer.replay(letter) for producer in (one, two) * 10))
        answers.append(await two.replay(letter))
        assert len({answer.id for answer in answers}) == 1
        assert [answer.duplicate for answer in answers].count(False) == 1
        await worker.finish(await worker.claim_one())
        assert await worker.claim() == []


@pytest.mark.parametrize("lost", [1, 2])
async def test_a_replay_whose_reply_is_lost_is_one_job(redis_url: str, namespace: str, lost: int) -> None:
    """Once is not noticed; twice is said, and the letter can be replayed again: it is the same job."""
    async with (
        Proxy(urlsplit(redis_url).port or 6379) as proxy,
        hand(redis_url, namespace) as worker,
        Producer(proxy.url, namespace=namespace, listen=False) as producer,
    ):
        job = await die(worker, producer)
        letter = await producer.dead_letter(job.id)
        proxy.drop_reply(lambda sent: b"EVALSHA" in sent, times=lost)
        try:
            again = (await producer.replay(letter)).id
        except SubmitUncertain as error:
            assert lost == 2
            again = error.job_id
        assert proxy.dropped == lost
        assert await producer.replay(letter) == Submitted(again, duplicate=True)
        claim = await worker.claim_one()
        assert claim.job.id == again
        await worker.finish(claim)


async def test_a_letter_stays_where_there_is_no_room(redis_url: str, namespace: str) -> None:
    """It is removed in the step that accepts the job, and in no other."""
    async with (
        hand(redis_url, namespace) as worker,
        Producer(redis_url, namespace=namespace, lane_jobs=1) as producer,
    ):
        job = await die(worker, producer)
        waiting = await producer.submit(**fields())
        letter = await producer.dead_letter(job.id)
        with pytest.raises(QueueFull):
            await producer.replay(letter)
        assert await letters(producer) == [letter]
        await producer.cancel(waiting.id)
        again = await producer.replay(letter)
        assert await letters(producer) == []
        await producer.cancel(again.id)


async def test_a_purged_letter_is_not_replayed(redis_url: str, namespace: str) -> None:
    """Purging is for good, and tells how many went."""
    async with hand(redis_url, namespace) as worker, Producer(redis_url, namespace=namespace) as producer:
        for _ in range(3):
            await die(worker, producer)
        found = await letters(producer)
        assert await producer.purge(found[:2]) == 2
        assert await producer.purge(found) == 1
        assert await producer.purge([]) == 0
        with pytest.raises(LetterNotFound):
            await producer.replay(found[0])
        assert await worker.claim() == []


async def test_a_replayed_job_that_fails_again_is_a_new_letter(redis_url: str, namespace: str) -> None:
    """Which can be replayed in its turn."""
    async with hand(redis_url, namespace) as worker, Producer(redis_url, namespace=namespace) as producer:
        job = await die(worker, producer)
        for _ in range(3):
            job = await producer.replay(await producer.dead_letter(job.id))
            claim = await worker.claim_one()
            await worker.queue.dead_letter(claim, failed(claim.job.id))
        assert [letter.id for letter in await letters(producer)] == [job.id]


async def test_jobs_of_an_adapter_stay_in_its_partition(redis_url: str, namespace: str) -> None:
    """Where it is loaded already."""
    async with (
        hand(redis_url, namespace, partitions=4) as worker,
        Producer(redis_url, namespace=namespace) as producer,
    ):
        job = await die(worker, producer, lora="poet")
        again = await producer.replay(await producer.dead_letter(job.id))
        assert parse_job_id(again.id)[1] == choose_partition("poet", 4)
        await worker.finish(await worker.claim_one())


# --- unreadable --------------------------------------------------------------
async def test_unreadable_letters_are_shown_and_purged_but_not_replayed(
    redis_url: str, namespace: str, server: Any
) -> None:
    """Their size and the reason; what names no job is known by its place."""
    async with hand(redis_url, namespace) as worker, Producer(redis_url, namespace=namespace) as producer:
        await bury(worker, server, namespace, hello="x" * 1000)
        named = new_job_id("demo", 0)
        await bury(worker, server, namespace, j=named, d="not a job", t="1")
        strange, broken = await letters(producer)
        assert (strange.error, strange.job, strange.size) == ("unreadable", None, 1000)
        assert strange.reason == "an entry that is not a job"
        assert strange.id.startswith(f"{named[:12]}:")
        assert broken.id == named
        for letter in (strange, broken):
            assert await producer.dead_letter(letter.id) == letter
            with pytest.raises(LetterUnreadable, match="cannot be replayed: "):
                await producer.replay(letter)
        assert await producer.purge([strange, broken]) == 2
        assert await letters(producer) == []


@pytest.mark.parametrize(
    "entry",
    [
        {"nothing": "known"},
        {"d": "\x00\xff"},
        {"j": "../..", "error": "\x1b[2J", "attempt": "-x"},
        {"j": "x" * 10_000},
    ],
    ids=["unknown fields", "no job", "hostile", "long"],
)
async def test_a_letter_may_hold_anything(
    redis_url: str, namespace: str, server: Any, entry: dict[Any, Any]
) -> None:
    """The list goes on, and what it tells is short and printable."""
    async with hand(redis_url, namespace), Producer(redis_url, namespace=namespace) as producer:
        await server.xadd(Keys(namespace).of_model("demo", 0).dead, entry)
        (letter,) = await letters(producer)
        assert letter.job is None
        assert letter.error.isprintable()
        assert len(letter.id) < 100
        assert await producer.dead_letter(letter.id) == letter
        assert await producer.purge([letter]) == 1


async def test_the_synchronous_facade_does_the_same(redis_url: str, namespace: str) -> None:
    """For programs without an event loop."""

    def application(job_id: str) -> str:
        with SyncProducer(redis_url, namespace=namespace) as producer:
            assert [letter.id for letter in producer.dead_letters()] == [job_id]
            letter = producer.dead_letter(job_id)
            again = producer.replay(letter).id
            assert producer.purge([letter]) == 0
            producer.cancel(again)
            return again

    async with hand(redis_url, namespace) as worker, Producer(redis_url, namespace=namespace) as producer:
        job = await die(worker, producer)
        again = await asyncio.to_thread(application, job.id)
        assert (await producer.status(again)).state is JobState.CANCELLED

"""Dead letters: what is kept of jobs that could not be done, how they run again, and how they go."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
import redis.asyncio
from tests.support.builders import failed
from tests.support.hand import Hand, hand

from laneway.producer import (
    DeadLetter,
    InvalidJob,
    JobFields,
    LetterNotFound,
    LetterUnreadable,
    Producer,
    QueueFull,
    Submitted,
    SyncProducer,
    cli,
)
from laneway.schemas import JobState
from laneway.schemas.ids import choose_partition, new_job_id, parse_job_id
from laneway.schemas.job import Bucket, SloClass
from laneway.schemas.keys import Keys, Lane, lanes
from laneway.worker.policy.admission import ClaimPlan, Stage
from laneway.worker.ports import Unreadable

pytestmark = pytest.mark.redis


@pytest.fixture
async def server(redis_url: str) -> AsyncIterator[Any]:
    """The server seen from outside."""
    async with redis.asyncio.Redis.from_url(redis_url, protocol=2) as client:
        yield client


def fields(**more: Any) -> JobFields:
    return cast(JobFields, {"model": "demo", "prompt": "a secret", **more})


async def die(worker: Hand, producer: Producer, code: str = "engine_died", **more: Any) -> Submitted:
    """A job that ends as a dead letter."""
    job = await producer.submit(**fields(**more))
    claim = await worker.claim_one()
    await worker.queue.dead_letter(claim, failed(claim.job.id, code))
    return job


async def bury(worker: Hand, server: Any, namespace: str, **entry: str) -> None:
    """An entry that is no job, found by a worker."""
    lane = Lane(0, SloClass.LATENCY, Bucket.SHORT)
    await server.xadd(Keys(namespace).of_model("demo", 0).lane(lane), entry)
    for found in await worker.queue.claim(ClaimPlan(10, (Stage(lanes(0), 10),))):
        assert isinstance(found, Unreadable)
        await worker.queue.bury(found)


async def letters(producer: Producer, **chosen: Any) -> list[DeadLetter]:
    return [letter async for letter in producer.dead_letters(**chosen)]


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


# --- commands ----------------------------------------------------------------
class Commands:
    """`laneway` with the options of one installation, in a thread: the test's loop goes on."""

    def __init__(self, url: str, namespace: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._connection = ["--redis-url", url, "--namespace", namespace]
        self._capsys = capsys

    async def run(self, *words: str, code: int = 0) -> str:
        """What it printed, both streams together."""
        assert await asyncio.to_thread(cli.main, [*words, *self._connection]) == code
        out, err = self._capsys.readouterr()
        return out + err

    async def json(self, *words: str) -> list[Any]:
        """One value a line."""
        return [json.loads(line) for line in (await self.run(*words, "--json")).splitlines()]


@pytest.fixture
def laneway(redis_url: str, namespace: str, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(redis_url, namespace, capsys)


async def test_the_list_is_a_line_for_each_letter(redis_url: str, namespace: str, laneway: Commands) -> None:
    """Id, when, error, attempts, lane; nothing of the prompt."""
    async with hand(redis_url, namespace) as worker, Producer(redis_url, namespace=namespace) as producer:
        job = await die(worker, producer)
        text = await laneway.run("dlq", "list")
        assert text.startswith(job.id)
        assert "engine_died" in text
        assert "latency:short" in text
        assert "secret" not in text
        (line,) = await laneway.json("dlq", "list")
        assert (line["id"], line["error"], line["attempts"]) == (job.id, "engine_died", 1)
        assert await laneway.json("dlq", "list", "--error", "other") == []
        assert await laneway.json("dlq", "list", "--older", "7d") == []


async def test_a_prompt_is_shown_only_when_asked_for(
    redis_url: str, namespace: str, laneway: Commands
) -> None:
    """Everything else of the job is, with the sentence that its consumer got."""
    async with hand(redis_url, namespace) as worker, Producer(redis_url, namespace=namespace) as producer:
        job = await die(worker, producer, metadata={"custom_id": "7"})
        for words in (["dlq", "show", job.id], ["dlq", "show", job.id, "--json"]):
            text = await laneway.run(*words)
            assert "it did not work" in text
            assert "custom_id" in text
            assert "a secret" not in text
            assert "a secret" in await laneway.run(*words, "--payload")


async def test_replaying_from_the_command_line(
    redis_url: str, namespace: str, server: Any, laneway: Commands
) -> None:
    """One by its id; all of an error, leaving the unreadable ones. A letter that is gone is an error in one line."""
    async with hand(redis_url, namespace) as worker, Producer(redis_url, namespace=namespace) as producer:
        job = await die(worker, producer)
        (answer,) = await laneway.json("dlq", "replay", job.id)
        assert answer["letter"] == job.id
        assert "no dead letter" in await laneway.run("dlq", "replay", job.id, code=1)
        await worker.finish(await worker.claim_one())
        await bury(worker, server, namespace, hello="there")
        for _ in range(3):
            await die(worker, producer, "engine_hung")
        await die(worker, producer, "engine_died")
        assert len(await laneway.json("dlq", "replay", "--all", "--error", "engine_hung")) == 3
        text = await laneway.run("dlq", "replay", "--all")
        assert "1 unreadable dead letters were left" in text
        assert len(await letters(producer)) == 1
        claims = await worker.claim()
        assert len(claims) == 4
        await worker.finish_all(claims)


async def test_purging_asks_for_consent(redis_url: str, namespace: str, laneway: Commands) -> None:
    """Without `--yes` it counts, and nothing goes."""
    async with hand(redis_url, namespace) as worker, Producer(redis_url, namespace=namespace) as producer:
        jobs = [await die(worker, producer) for _ in range(40)]
        refused = await laneway.run("dlq", "purge", "--all", code=2)
        assert "deletes 40 dead letters for good: expected --yes" in refused
        assert await laneway.json("dlq", "purge", "--older", "7d", "--yes") == [{"purged": 0}]
        assert await laneway.json("dlq", "purge", jobs[0].id, "--yes") == [{"purged": 1}]
        assert "expected either an id, or --all" in await laneway.run("dlq", "purge", "--yes", code=2)
        assert await laneway.json("dlq", "purge", "--all", "--yes") == [{"purged": 39}]
        assert await letters(producer) == []


async def test_a_job_tells_all_that_is_known_of_it(redis_url: str, namespace: str, laneway: Commands) -> None:
    """Attempts, failures, losses, owner, times, how long it waited, how many listen; no prompt, no answer."""
    async with hand(redis_url, namespace) as worker, Producer(redis_url, namespace=namespace) as producer:
        job = await producer.submit(**fields())
        (facts,) = await laneway.json("jobs", "show", job.id)
        assert (facts["state"], facts["attempts"], facts["owner"], facts["outputs"]) == ("queued", 0, "", 1)
        assert facts["waited_ms"] >= 0
        claim = await worker.claim_one()
        await worker.queue.start(claim)
        (facts,) = await laneway.json("jobs", "show", job.id)
        assert (facts["state"], facts["attempts"], facts["lane"]) == ("running", 1, "latency:short")
        assert facts["owner"].startswith("hand-")
        assert facts["submitted_ms"] <= facts["claimed_ms"] <= facts["started_ms"]
        assert facts["waited_ms"] == facts["claimed_ms"] - facts["submitted_ms"]
        await worker.queue.dead_letter(claim, failed(job.id))
        (facts,) = await laneway.json("jobs", "show", job.id)
        assert (facts["state"], facts["error"], facts["message"]) == (
            "failed",
            "engine_died",
            "it did not work",
        )
        text = await laneway.run("jobs", "show", job.id)
        assert "engine_died: it did not work" in text
        assert "waited" in text
        assert "secret" not in text
        assert "no job" in await laneway.run("jobs", "show", new_job_id("demo", 0), code=1)


async def test_lost_leases_are_counted(
    redis_url: str, namespace: str, laneway: Commands, server: Any
) -> None:
    """As the worker that takes the job over counts them."""
    async with hand(redis_url, namespace) as worker, Producer(redis_url, namespace=namespace) as producer:
        job = await producer.submit(**fields())
        claim = await worker.claim_one()
        await server.hincrby(Keys(namespace).of_job(job.id).job(job.id), "losses", 2)
        (facts,) = await laneway.json("jobs", "show", job.id)
        assert facts["losses"] == 2
        await worker.finish(claim)


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

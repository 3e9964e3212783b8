"""Streams on a real server: whatever happens on the way, the tokens join to the answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis.asyncio
from tests.support.hand import hand
from tests.support.proxy import Proxy
from tests.support.wait import wait_until

from laneway.producer import JobNotFound, Producer
from laneway.schemas import Cancelled, Ended, Event, Restarted, Started, Tokens, Usage
from laneway.schemas.cards import AttachJob
from laneway.schemas.ids import JobId, new_job_id

pytestmark = pytest.mark.redis


@pytest.fixture
async def server(redis_url: str) -> AsyncIterator[Any]:
    """The server seen from outside."""
    async with redis.asyncio.Redis.from_url(redis_url, protocol=2) as client:
        yield client


class Screen:
    """A consumer: shows a job's tokens as they come."""

    def __init__(self, producer: Producer, job_id: str) -> None:
        self.events: list[Event] = []
        self.task = asyncio.create_task(self._follow(producer, job_id))

    async def _follow(self, producer: Producer, job_id: str) -> None:
        async for event in producer.stream(job_id):
            self.events.append(event)

    @property
    def text(self) -> str:
        """What stands on the screen now."""
        text = ""
        for event in self.events:
            text = "" if isinstance(event, Restarted) else text
            text += event.text if isinstance(event, Tokens) else ""
        return text

    async def shows(self, text: str) -> None:
        """Return when exactly that stands on the screen."""
        await wait_until(lambda: self.text == text, f"{text!r} on the screen")

    async def ends(self) -> str:
        """The text at the end of the job."""
        await asyncio.wait_for(self.task, 10)
        assert isinstance(self.events[-1], Ended)
        assert sum(isinstance(event, Ended) for event in self.events) == 1
        return self.text


async def submit(producer: Producer) -> str:
    return (await producer.submit(model="demo", prompt="Hello", stream=True)).id


async def test_tokens_are_shown_as_they_come(each_redis_url: str, namespace: str) -> None:
    """One event per engine step, in order, then the end."""
    async with (
        hand(each_redis_url, namespace) as worker,
        Producer(each_redis_url, namespace=namespace) as producer,
    ):
        screen = Screen(producer, await submit(producer))
        claim = await worker.claim_one()
        await worker.publish(claim, Started(job_id=claim.job.id, attempt=1))
        await worker.say(claim, "Once", " upon")
        await screen.shows("Once upon")
        await worker.say(claim, " a time", first=2)
        await worker.finish(claim, "Once upon a time")
        assert await screen.ends() == "Once upon a time"
        assert screen.events[-1] == Ended(job_id=claim.job.id, attempt=1, state="completed")
        assert [type(event) for event in screen.events] == [Started, Tokens, Tokens, Tokens, Ended]


async def test_a_late_consumer_sees_everything_and_so_does_a_second_one(
    redis_url: str, namespace: str
) -> None:
    """The output stream is a log: what came before somebody looked is read from it."""
    async with hand(redis_url, namespace) as worker, Producer(redis_url, namespace=namespace) as producer:
        job_id = await submit(producer)
        noise = await submit(producer)
        claim, other = await worker.claim()
        await worker.say(other, "not", "mine")
        await worker.say(claim, "a", "b")
        first = Screen(producer, job_id)
        await first.shows("ab")
        second = Screen(producer, job_id)
        await second.shows("ab")
        await worker.say(claim, "c", first=2)
        await worker.finish(claim, "abc")
        await worker.finish(other, "notmine")
        assert (await first.ends(), await second.ends()) == ("abc", "abc")
        assert await Screen(producer, noise).ends() == "notmine"


async def test_a_job_that_has_ended_is_shown_from_its_result(redis_url: str, namespace: str) -> None:
    """One token event with the whole answer, whoever asks."""
    async with hand(redis_url, namespace) as worker, Producer(redis_url, namespace=namespace) as producer:
        job_id = await submit(producer)
        await worker.finish(await worker.claim_one(), "abc")
        await producer.result(job_id)
        async with Producer(redis_url, namespace=namespace) as other:
            assert await Screen(other, job_id).ends() == "abc"


async def test_another_producer_may_attach(redis_url: str, namespace: str) -> None:
    """It reads the past from the owner's stream; the future comes once the worker was told. The overlap is not shown twice."""
    async with (
        hand(redis_url, namespace) as worker,
        Producer(redis_url, namespace=namespace) as owner,
        Producer(redis_url, namespace=namespace) as other,
    ):
        job_id = await submit(owner)
        claim = await worker.claim_one()
        await worker.say(claim, "a", "b")
        theirs = Screen(other, job_id)
        await theirs.shows("ab")
        (attach,) = await worker.queue.controls(5)
        await worker.say(claim, "c", first=2)  # the worker has not listened yet: only the owner gets this
        both = worker.also(claim, attach.output)  # type: ignore[union-attr]
        await worker.say(both, "d", first=3)
        await theirs.shows("abcd")
        await worker.finish(both, "abcde")
        assert await theirs.ends() == "abcde"
        assert await Screen(owner, job_id).ends() == "abcde"


async def test_a_second_attempt_that_begins_anew_wipes_the_screen(redis_url: str, namespace: str) -> None:
    """What a lost worker said, and may still say, does not mix with the new answer."""
    async with hand(redis_url, namespace) as worker, Producer(redis_url, namespace=namespace) as producer:
        screen = Screen(producer, await submit(producer))
        claim = await worker.claim_one()
        await worker.say(claim, "old", " text")
        await screen.shows("old text")
        await worker.queue.hand_back([claim])
        again = await worker.claim_one()
        await worker.say(again, "new")
        await worker.say(claim, " zombie", first=2)
        await worker.finish(again, "new answer")
        assert await screen.ends() == "new answer"
        assert [event.attempt for event in screen.events if isinstance(event, Restarted)] == [2]


async def test_a_hole_in_the_stream_is_filled_from_the_result(
    redis_url: str, namespace: str, server: Any
) -> None:
    """Tokens that the stream no longer holds are never skipped silently: the answer's rest comes at the end."""
    async with hand(redis_url, namespace) as worker, Producer(redis_url, namespace=namespace) as producer:
        screen = Screen(producer, await submit(producer))
        claim = await worker.claim_one()
        await worker.say(claim, "a")
        await screen.shows("a")
        await worker.say(claim, "c", "d", first=2)  # token event 1 is lost
        await worker.say(claim, "e", first=4)
        await worker.finish(claim, "abcde")
        assert await screen.ends() == "abcde"
        assert [event.text for event in screen.events if isinstance(event, Tokens)] == ["a", "bcde"]


async def test_a_consumer_that_does_not_keep_up_reads_the_log_instead(
    redis_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is kept for a slow consumer is bounded; what falls out is read again, in order, when it gets there."""
    monkeypatch.setattr("laneway.producer.listener._INBOX_EVENTS", 8)
    async with hand(redis_url, namespace) as worker, Producer(redis_url, namespace=namespace) as producer:
        job_id = await submit(producer)
        stream, inboxes = producer.stream(job_id), producer._listener._inboxes
        claim = await worker.claim_one()
        await worker.say(claim, "0 ")
        text = ""
        async for event in stream:
            if text == "" and isinstance(event, Tokens):
                await worker.say(claim, *(f"{number} " for number in range(1, 100)), first=1)
                await worker.publish(claim)  # one more entry: all of the above have been read when it has
                await wait_until(lambda: len(inboxes[JobId(job_id)][0]._events) == 8, "a full inbox")
                await worker.finish(claim, "".join(f"{number} " for number in range(100)))
            text += event.text if isinstance(event, Tokens) else ""
        assert text == "".join(f"{number} " for number in range(100))


async def test_nothing_is_lost_when_connections_break(redis_url: str, namespace: str) -> None:
    """The reader goes on after the last entry it saw; a submit, a result and a stream all survive it."""
    async with (
        Proxy(urlsplit(redis_url).port or 0) as proxy,
        hand(redis_url, namespace) as worker,
        Producer(proxy.url, namespace=namespace) as producer,
    ):
        job_id = await submit(producer)
        screen, waiter = Screen(producer, job_id), asyncio.create_task(producer.result(job_id))
        claim = await worker.claim_one()
        words = [f"{number} " for number in range(60)]
        for number, word in enumerate(words):
            await worker.say(claim, word, first=number)
            if number % 20 == 10:
                proxy.cut()
        await worker.finish(claim, "".join(words))
        assert await screen.ends() == "".join(words)
        assert (await waiter).text == "".join(words)


async def test_an_output_stream_that_vanished_is_made_anew(
    redis_url: str, namespace: str, server: Any
) -> None:
    """A flush or a failover takes it away: new events arrive again, and lost ones come from the result."""
    async with (
        hand(redis_url, namespace) as worker,
        Producer(redis_url, namespace=namespace, output_ttl_s=3) as producer,
    ):
        screen = Screen(producer, await submit(producer))
        claim = await worker.claim_one()
        await worker.say(claim, "a")
        await screen.shows("a")
        await server.delete(producer._listener.output)
        await worker.say(claim, "b", first=1)
        await wait_until(lambda: server.exists(producer._listener.output), "a new output stream")
        await worker.say(claim, "c", first=2)
        await worker.finish(claim, "abc")
        assert await screen.ends() == "abc"


async def test_a_consumer_that_leaves_is_forgotten(redis_url: str, namespace: str) -> None:
    """Breaking off a stream frees what it held; the job does not mind."""
    async with hand(redis_url, namespace) as worker, Producer(redis_url, namespace=namespace) as producer:
        screen = Screen(producer, await submit(producer))
        claim = await worker.claim_one()
        await worker.say(claim, "a")
        await screen.shows("a")
        screen.task.cancel()
        await wait_until(lambda: not producer._listener._inboxes, "the inbox to go")
        await worker.finish(claim, "abc")
        assert (await producer.result(claim.job.id)).text == "abc"


async def test_an_unknown_job_has_no_stream(redis_url: str, namespace: str) -> None:
    """It is reported at once."""
    async with Producer(redis_url, namespace=namespace) as producer:
        with pytest.raises(JobNotFound):
            await anext(producer.stream(new_job_id("demo", 0)))


async def test_heartbeats_keep_the_output_stream_alive(redis_url: str, namespace: str, server: Any) -> None:
    """While somebody reads it, it outlives its TTL; without a reader it fades by itself."""
    async with Producer(redis_url, namespace=namespace, output_ttl_s=3) as producer:
        await submit(producer)
        output = producer._listener.output
        low = await server.pttl(output)

        async def renewed() -> bool:
            nonlocal low
            before, low = low, await server.pttl(output)
            assert low > 0
            return bool(low > before)

        await wait_until(renewed, "a heartbeat")


async def test_a_gap_is_filled_from_what_is_kept(redis_url: str, namespace: str) -> None:
    """Long before the end: a consumer that attaches in the middle of an answer sees it from the beginning."""
    async with hand(redis_url, namespace) as worker, Producer(redis_url, namespace=namespace) as producer:
        job = await producer.submit(model="demo", prompt="Hi")
        claim = await worker.claim_one()
        async with Producer(redis_url, namespace=namespace) as late:
            screen = Screen(late, job.id)
            (control,) = await wait_until(lambda: worker.queue.controls(0.1))
            assert isinstance(control, AttachJob)
            claim = worker.also(claim, control.output)
            await worker.keep(claim, "one ", "two ", "three")
            await worker.say(claim, "three", first=2)
            await screen.shows("one two three")
            await worker.finish(claim, "one two three")
            assert await screen.ends() == "one two three"
        assert [event.seq for event in screen.events if isinstance(event, Tokens)] == [0, 1, 2]


async def test_a_cancelled_job_that_waits_to_go_on_keeps_what_it_has(redis_url: str, namespace: str) -> None:
    """Handed back in the middle of its answer: the outcome holds what was generated."""
    async with hand(redis_url, namespace) as worker, Producer(redis_url, namespace=namespace) as producer:
        job = await producer.submit(model="demo", prompt="Hi")
        claim = await worker.claim_one()
        await worker.keep(claim, "one ", "two")
        await worker.queue.hand_back([claim])
        await producer.cancel(job.id)
        outcome = (await producer.result(job.id, 5)).outcome
        assert isinstance(outcome, Cancelled)
        assert (outcome.choices[0].text, outcome.choices[0].token_ids) == ("one two", (4, 3))
        assert outcome.usage == Usage(output_tokens=2)

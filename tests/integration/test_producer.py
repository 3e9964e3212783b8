"""A producer on a real server: what is submitted, what is heard, and what is left behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any, cast

import pytest
import redis.asyncio
from tests.support.hand import hand
from tests.support.wait import wait_until

from laneway.producer import (
    DeadlineInfeasible,
    JobFields,
    JobNotFound,
    Producer,
    ProducerClosed,
    QueueFull,
    ResultTimeout,
    SubmitStopped,
    SyncProducer,
    UnknownModel,
)
from laneway.schemas import Bucket, InvalidJob, JobState, SloClass, Tokens
from laneway.schemas.cards import CancelJob, Floor
from laneway.schemas.ids import choose_partition, new_job_id, parse_job_id
from laneway.schemas.keys import Keys, Lane

pytestmark = pytest.mark.redis


@pytest.fixture
async def server(redis_url: str) -> AsyncIterator[Any]:
    """The server seen from outside."""
    async with redis.asyncio.Redis.from_url(redis_url, protocol=2) as client:
        yield client


def fields(**more: Any) -> JobFields:
    return cast(JobFields, {"model": "demo", "prompt": "Hello", **more})


# --- submit ------------------------------------------------------------------
async def test_a_job_arrives_as_it_was_written(each_redis_url: str, namespace: str) -> None:
    """Every field, in the lane of its class and bucket, on every supported server."""
    async with (
        hand(each_redis_url, namespace) as worker,
        Producer(each_redis_url, namespace=namespace) as producer,
    ):
        submitted = await producer.submit(
            model="demo", messages=[{"role": "user", "content": "Hi"}], slo="throughput", bucket="long", lora="poet",
            tenant="acme", deadline_ms=60_000, metadata={"custom_id": "7"}, sampling={"temperature": 0, "stop": "\n"},
        )  # fmt: skip
        claim = await worker.claim_one()
        assert (claim.job.id, submitted.duplicate) == (submitted.id, False)
        assert claim.lane == Lane(0, SloClass.THROUGHPUT, Bucket.LONG)
        assert (claim.job.lora, claim.job.tenant, claim.job.metadata) == ("poet", "acme", {"custom_id": "7"})
        assert (claim.job.sampling.temperature, claim.job.sampling.stop) == (0, ("\n",))
        assert claim.deadline is not None
        await worker.finish(claim, "done")
        result = await producer.result(submitted.id, timeout=10)
        assert (result.text, result.metadata) == ("done", {"custom_id": "7"})


async def test_a_deadline_that_no_worker_can_meet_is_refused_on_request(
    redis_url: str, namespace: str
) -> None:
    """By what the workers of the model have measured. Without that request the job is accepted, and a worker decides."""
    floor = Floor(prompt_s=0.001, token_s=0.01)
    async with (
        hand(redis_url, namespace, floor=floor) as worker,
        Producer(redis_url, namespace=namespace, infeasible="refuse") as strict,
        Producer(redis_url, namespace=namespace) as lenient,
    ):
        hopeless = fields(deadline_ms=300, sampling={"min_tokens": 50})
        with pytest.raises(
            DeadlineInfeasible, match="deadline_ms: expected at least 500, which demo needs when idle"
        ):
            await strict.submit(**hopeless)
        assert await worker.claim() == []
        accepted = {
            (await strict.submit(**fields(deadline_ms=300))).id,
            (await lenient.submit(**hopeless)).id,
        }
        claims = await worker.claim()
        assert {claim.job.id for claim in claims} == accepted
        await worker.finish_all(claims)


@pytest.mark.unfinished
async def test_a_large_job_lies_beside_its_lane(redis_url: str, namespace: str, server: Any) -> None:
    """A stream entry is echoed by every read, so bodies over 64 KiB are kept elsewhere; the worker gets them all the same."""
    async with hand(redis_url, namespace) as worker, Producer(redis_url, namespace=namespace) as producer:
        prompt = "x" * 200_000
        job = await producer.submit(model="demo", prompt=prompt)
        at = Keys(namespace).of_job(job.id)
        lane = at.lane(Lane(0, SloClass.LATENCY, Bucket.LONG))
        assert await server.memory_usage(lane) < 10_000
        assert (await worker.claim_one()).job.payload.text == prompt  # type: ignore[union-attr]


async def test_an_idempotency_key_is_one_job(redis_url: str, namespace: str) -> None:
    """However often and however concurrently it is submitted; the first id is what everybody gets."""
    async with hand(redis_url, namespace) as worker, Producer(redis_url, namespace=namespace) as producer:
        answers = await asyncio.gather(
            *(producer.submit(**fields(idempotency_key="order-1")) for _ in range(20))
        )
        assert len({answer.id for answer in answers}) == 1
        assert [answer.duplicate for answer in answers].count(False) == 1
        await worker.finish(await worker.claim_one())
        assert (await producer.submit(**fields(idempotency_key="order-1"))).duplicate
        assert await worker.claim() == []


async def test_jobs_of_an_adapter_share_a_partition_and_others_spread(redis_url: str, namespace: str) -> None:
    """The number of partitions comes from the model's card; a LoRA id always leads to the same one."""
    async with hand(redis_url, namespace, partitions=4), Producer(redis_url, namespace=namespace) as producer:
        adapter = [await producer.submit(**fields(lora="poet")) for _ in range(5)]
        assert {parse_job_id(job.id)[1] for job in adapter} == {choose_partition("poet", 4)}
        base = [await producer.submit(**fields()) for _ in range(60)]
        assert {parse_job_id(job.id)[1] for job in base} == {0, 1, 2, 3}


async def test_many_jobs_are_taken_chunk_by_chunk(redis_url: str, namespace: str) -> None:
    """Answers come in order, and the source is never read further ahead than one chunk."""
    taken = 0

    def source() -> Iterator[JobFields]:
        nonlocal taken
        for number in range(1000):
            taken += 1
            yield fields(metadata={"number": str(number)})

    async with (
        hand(redis_url, namespace) as worker,
        Producer(redis_url, namespace=namespace, chunk=64) as producer,
    ):
        ids = []
        async for submitted in producer.submit_many(source()):
            ids.append(submitted.id)
            assert taken <= len(ids) + 64
        claims = await worker.claim(2000)
        assert {claim.job.id: claim.job.metadata["number"] for claim in claims} == {
            job_id: str(number) for number, job_id in enumerate(ids)
        }
        await worker.finish_all(claims)


async def test_many_jobs_from_an_asynchronous_source_stop_at_the_first_bad_one(
    redis_url: str, namespace: str
) -> None:
    """The ones before it are in the queue and were handed out; the error names the index."""

    async def source() -> AsyncIterator[JobFields]:
        for prompt in ("a", "b", "", "d"):
            yield JobFields(model="demo", prompt=prompt)

    ids = []
    async with hand(redis_url, namespace) as worker, Producer(redis_url, namespace=namespace) as producer:

        async def submit_all() -> None:
            async for submitted in producer.submit_many(source()):
                ids.append(submitted.id)  # noqa: PERF401 - a comprehension would be lost with the error

        with pytest.raises(SubmitStopped, match="job 2 of submit_many: prompt: expected text"):
            await submit_all()
        claims = await worker.claim()
        assert [claim.job.id for claim in claims] == ids
        assert len(ids) == 2
        await worker.finish_all(claims)


@pytest.mark.case("B33")
async def test_a_full_lane_refuses_until_there_is_room(redis_url: str, namespace: str) -> None:
    """`QueueFull` names the bound, other lanes go on, and a caller may prefer to wait."""
    async with (
        hand(redis_url, namespace) as worker,
        Producer(redis_url, namespace=namespace, lane_jobs=2) as producer,
        Producer(redis_url, namespace=namespace, lane_jobs=2, full_wait_s=30) as patient,
    ):
        for _ in range(2):
            await producer.submit(**fields())
        with pytest.raises(QueueFull, match="2 jobs in latency:short") as caught:
            await producer.submit(**fields())
        assert caught.value.retry_after > 0
        await producer.submit(**fields(slo="throughput"))
        waiting = asyncio.create_task(patient.submit(**fields()))
        await worker.finish_all(await worker.claim())
        submitted = await waiting
        claim = await worker.claim_one()
        assert claim.job.id == submitted.id
        await worker.finish(claim)


async def test_a_lane_is_bounded_in_tokens_too(redis_url: str, namespace: str) -> None:
    """Jobs differ a thousandfold in cost; one that is larger than the bound still gets in when nothing waits."""
    async with Producer(redis_url, namespace=namespace, lane_tokens=1000) as producer:
        await producer.submit(**fields(bucket="short", sampling={"max_tokens": 5000}))
        with pytest.raises(QueueFull, match="1000 tokens in latency:short"):
            await producer.submit(**fields(sampling={"max_tokens": 1}))


# --- models ------------------------------------------------------------------
async def test_only_models_that_are_served_are_accepted_once_any_is(redis_url: str, namespace: str) -> None:
    """Before the first worker ever came up anything goes; afterwards a misspelt name is answered with the nearest one."""
    async with Producer(redis_url, namespace=namespace, model_cache_s=0) as producer:
        await producer.submit(model="anything", prompt="x")
        async with hand(redis_url, namespace, context_tokens=100, vocabulary=1000):
            with pytest.raises(UnknownModel, match="did you mean 'demo'"):
                await producer.submit(model="dmeo", prompt="x")
            with pytest.raises(InvalidJob, match="prompt_token_ids: expected token ids below 1000"):
                await producer.submit(model="demo", prompt_token_ids=[1000])
            with pytest.raises(InvalidJob, match="prompt: expected at most 99 tokens for demo, got 100"):
                await producer.submit(model="demo", prompt_token_ids=[1] * 100)
    async with Producer(redis_url, namespace=namespace, check_model=False) as unchecked:
        await unchecked.submit(model="dmeo", prompt="x")


async def test_a_model_that_has_just_come_up_is_found(redis_url: str, namespace: str) -> None:
    """What is missing from what a producer remembers is looked for before it is refused."""
    async with (
        hand(redis_url, namespace, "first"),
        Producer(redis_url, namespace=namespace, model_cache_s=3600) as producer,
    ):
        await producer.submit(model="first", prompt="x")
        async with hand(redis_url, namespace, "second"):

            async def accepted() -> bool:
                try:
                    await producer.submit(model="second", prompt="x")
                except UnknownModel:
                    return False
                return True

            await wait_until(accepted, "the new model to be known", timeout=5)


async def test_a_token_counter_makes_buckets_exact(redis_url: str, namespace: str) -> None:
    """What the application's own tokenizer says goes before the estimate."""
    async with (
        hand(redis_url, namespace) as worker,
        Producer(redis_url, namespace=namespace, count_tokens=lambda prompt: 5000) as producer,
    ):
        await producer.submit(**fields())
        claim = await worker.claim_one()
        assert (claim.job.prompt_tokens, claim.job.prompt_counted, claim.lane.bucket) == (
            5000,
            True,
            Bucket.LONG,
        )
        await worker.finish(claim)


# --- result ------------------------------------------------------------------
@pytest.mark.case("B25")
async def test_a_result_can_be_read_any_number_of_times_by_anybody(redis_url: str, namespace: str) -> None:
    """Reading destroys nothing: a client that crashed after reading asks again, from another process if need be."""
    async with hand(redis_url, namespace) as worker, Producer(redis_url, namespace=namespace) as producer:
        job = await producer.submit(**fields())
        waiter = asyncio.create_task(producer.result(job.id))
        await worker.finish(await worker.claim_one(), "once")
        first = await waiter
        assert await producer.result(job.id) == first
        async with Producer(redis_url, namespace=namespace) as other:
            assert await other.result(job.id, timeout=5) == first


@pytest.mark.case("B27")
async def test_a_job_that_ended_before_anybody_listened_is_answered_at_once(
    redis_url: str, namespace: str
) -> None:
    """The result is looked at first, so that no wake-up is needed."""
    async with (
        hand(redis_url, namespace) as worker,
        Producer(redis_url, namespace=namespace, listen=False, recheck_s=(60, 60)) as producer,
    ):
        job = await producer.submit(**fields())
        await worker.finish(await worker.claim_one())
        assert (await producer.result(job.id, timeout=5)).text == "done"


@pytest.mark.case("B27")
async def test_a_lost_wake_up_delays_a_result_but_does_not_lose_it(redis_url: str, namespace: str) -> None:
    """Whoever waits looks again by itself, within the time that is set."""
    async with (
        hand(redis_url, namespace) as worker,
        Producer(redis_url, namespace=namespace, recheck_s=(0.05, 0.1)) as producer,
    ):
        job = await producer.submit(**fields())
        waiter = asyncio.create_task(producer.result(job.id))
        await worker.finish(await worker.claim_one(), tell=False)
        assert (await asyncio.wait_for(waiter, 5)).text == "done"


@pytest.mark.case("B26")
async def test_two_applications_wait_for_disjoint_jobs(redis_url: str, namespace: str) -> None:
    """Nobody takes another's answers: each process has an output stream of its own."""
    async with (
        hand(redis_url, namespace) as worker,
        Producer(redis_url, namespace=namespace) as one,
        Producer(redis_url, namespace=namespace) as two,
    ):
        mine = [await one.submit(**fields()) for _ in range(10)]
        theirs = [await two.submit(**fields()) for _ in range(10)]
        waiters = [
            asyncio.create_task(p.result(job.id)) for p, jobs in ((one, mine), (two, theirs)) for job in jobs
        ]
        await worker.finish_all(await worker.claim())
        assert [result.text for result in await asyncio.gather(*waiters)] == [job.id for job in mine + theirs]


@pytest.mark.case("B26")
async def test_another_producers_job_can_be_waited_for(redis_url: str, namespace: str) -> None:
    """Without being told by its worker: by looking."""
    async with (
        hand(redis_url, namespace) as worker,
        Producer(redis_url, namespace=namespace) as owner,
        Producer(redis_url, namespace=namespace, recheck_s=(0.05, 0.1)) as other,
    ):
        job = await owner.submit(**fields())
        waiter = asyncio.create_task(other.result(job.id))
        await worker.finish(await worker.claim_one())
        assert (await asyncio.wait_for(waiter, 5)).text == "done"


async def test_waiting_ends_with_a_time_out_or_for_an_unknown_job(
    redis_url: str, namespace: str, server: Any
) -> None:
    """A time-out is not the end of the job. A job that was lost with its server is reported, not waited for."""
    async with (
        hand(redis_url, namespace) as worker,
        Producer(redis_url, namespace=namespace, recheck_s=(0.05, 0.1)) as producer,
    ):
        job = await producer.submit(**fields())
        with pytest.raises(ResultTimeout, match=r"had not ended after 0\.05 s"):
            await producer.result(job.id, timeout=0.05)
        with pytest.raises(JobNotFound):
            await producer.result(new_job_id("demo", 0))
        with pytest.raises(InvalidJob, match="job id: expected an id returned by submit"):
            await producer.result("../../etc")
        waiter = asyncio.create_task(producer.result(job.id))
        await worker.finish(await worker.claim_one(), tell=False)
        await waiter
        at = Keys(namespace).of_job(job.id)
        await server.delete(at.result(job.id))
        with pytest.raises(JobNotFound, match="its result has expired"):
            await producer.result(job.id)
        await server.delete(at.job(job.id))
        with pytest.raises(JobNotFound):
            await producer.status(job.id)


@pytest.mark.case("A22")
async def test_two_thousand_waiters_need_a_few_connections(
    redis_url: str, namespace: str, server: Any
) -> None:
    """Waiting costs a future, not a connection."""
    before = len(await server.client_list())
    async with hand(redis_url, namespace) as worker, Producer(redis_url, namespace=namespace) as producer:
        jobs = [submitted.id async for submitted in producer.submit_many(fields() for _ in range(2000))]
        waiters = [asyncio.create_task(producer.result(job_id)) for job_id in jobs]
        claims = await worker.claim(3000)
        names = [client["name"] for client in await server.client_list()]
        assert names.count("laneway-producer") <= producer.settings.connections + 1 + before
        await worker.finish_all(claims)
        assert [result.text for result in await asyncio.gather(*waiters)] == jobs


# --- status and cancel -------------------------------------------------------
async def test_a_job_tells_where_it_is(redis_url: str, namespace: str) -> None:
    """From the lane to its end."""
    async with hand(redis_url, namespace) as worker, Producer(redis_url, namespace=namespace) as producer:
        job = await producer.submit(**fields())
        status = await producer.status(job.id)
        assert (status.state, status.result) == (JobState.QUEUED, None)
        claim = await worker.claim_one()
        assert (await producer.status(job.id)).state is JobState.CLAIMED
        await worker.queue.start(claim)
        assert (await producer.status(job.id)).state is JobState.RUNNING
        await worker.finish(claim)
        status = await producer.status(job.id)
        assert (status.state, status.result is not None) == (JobState.COMPLETED, True)
        assert await producer.cancel(job.id) is JobState.COMPLETED


async def test_a_waiting_job_is_cancelled_at_once(redis_url: str, namespace: str) -> None:
    """No worker is needed; whoever waits is woken; cancelling again says the same."""
    async with (
        hand(redis_url, namespace) as worker,
        Producer(redis_url, namespace=namespace, recheck_s=(60, 60)) as producer,
    ):
        job = await producer.submit(**fields(metadata={"custom_id": "7"}))
        waiter = asyncio.create_task(producer.result(job.id))
        await wait_until(lambda: producer._listener._inboxes, "the waiter to listen")
        assert await producer.cancel(job.id) is JobState.CANCELLED
        result = await asyncio.wait_for(waiter, 5)
        assert (result.state, result.model, result.metadata) == (
            JobState.CANCELLED,
            "demo",
            {"custom_id": "7"},
        )
        assert await producer.cancel(job.id) is JobState.CANCELLED
        large = await producer.submit(model="demo", prompt="x" * 100_000, metadata={"custom_id": "8"})
        await producer.cancel(large.id)
        assert (await producer.result(large.id)).metadata == {"custom_id": "8"}
        assert await worker.claim() == []


async def test_the_worker_of_a_claimed_job_is_told_to_stop(redis_url: str, namespace: str) -> None:
    """The caller learns that the job is still alive, and waits for its end if it cares."""
    async with hand(redis_url, namespace) as worker, Producer(redis_url, namespace=namespace) as producer:
        job = await producer.submit(**fields())
        claim = await worker.claim_one()
        assert await producer.cancel(job.id) is JobState.CLAIMED
        assert await worker.queue.controls(5) == [CancelJob(job_id=job.id)]
        await worker.finish(claim)


async def test_an_unknown_job_cannot_be_cancelled(redis_url: str, namespace: str) -> None:
    """Rather than a mark left for nobody."""
    async with Producer(redis_url, namespace=namespace) as producer:
        with pytest.raises(JobNotFound):
            await producer.cancel(new_job_id("demo", 0))


# --- the end -----------------------------------------------------------------
async def test_a_closed_producer_leaves_nothing_and_answers_nothing(
    redis_url: str, namespace: str, server: Any
) -> None:
    """The output stream goes with it, waiters are told, and the jobs stay."""
    producer = Producer(redis_url, namespace=namespace)
    job = await producer.submit(**fields())
    output = producer._listener.output
    assert 0 < await server.pttl(output) <= 30_000
    waiter = asyncio.create_task(producer.result(job.id))
    await wait_until(lambda: producer._listener._inboxes, "the waiter to listen")
    await producer.close()
    with pytest.raises(ProducerClosed):
        await waiter
    assert not await server.exists(output)
    for use in (
        producer.submit(**fields()),
        producer.result(job.id),
        producer.status(job.id),
        producer.cancel(job.id),
    ):
        with pytest.raises(ProducerClosed):
            await use
    async with Producer(redis_url, namespace=namespace) as other:
        assert (await other.status(job.id)).state is JobState.QUEUED


async def test_the_synchronous_facade_does_the_same(redis_url: str, namespace: str) -> None:
    """For programs without an event loop; here the loop is the worker's."""

    cancelled = threading.Event()

    def application() -> str:
        with SyncProducer(redis_url, namespace=namespace) as producer:
            many = list(producer.submit_many([fields(), fields()]))
            assert [producer.cancel(job.id) for job in many] == [JobState.CANCELLED] * 2
            cancelled.set()
            job = producer.submit(**fields(stream=True))
            assert producer.status(job.id).state in JobState
            text = "".join(event.text for event in producer.stream(job.id) if isinstance(event, Tokens))
            assert producer.result(job.id).text == text
            return text

    async with hand(redis_url, namespace) as worker:
        running = asyncio.create_task(asyncio.to_thread(application))
        await asyncio.to_thread(cancelled.wait, 10)
        claim = (await wait_until(worker.claim, "the streaming job"))[0]
        await worker.say(claim, "Hel", "lo")
        await worker.finish(claim, "Hello")
        assert await running == "Hello"

"""Back-pressure: what is not accepted, how the producer is told, and why results always find room."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import redis.asyncio
from tests.conftest import StartServer
from tests.support.hand import hand
from tests.support.servers import binaries
from tests.support.wait import wait_until
from tests.support.worker_process import WorkerProcess

from laneway.producer import JobFields, Producer, QueueFull, Submitted
from laneway.schemas import JobState
from laneway.schemas.job import Bucket, SloClass
from laneway.schemas.keys import Keys, Lane
from laneway.worker.errors import QueueUnavailable as NoAnswer

pytestmark = pytest.mark.redis

LANE = Lane(0, SloClass.LATENCY, Bucket.SHORT)
FULL = ("--maxmemory", "5mb", "--maxmemory-policy", "noeviction")


def fields(**more: Any) -> JobFields:
    return cast(JobFields, {"model": "demo", "prompt": "Hello", **more})


@asynccontextmanager
async def racing(url: str, namespace: str, **settings: Any) -> AsyncIterator[list[Producer]]:
    """Fifty producers, as of fifty processes."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                Producer(url, namespace=namespace, listen=False, connections=1, **settings)
            )
            for _ in range(50)
        ]


async def submit_all(producers: list[Producer], **more: Any) -> tuple[list[Submitted], list[QueueFull]]:
    """What becomes of four jobs of each, all at once."""
    calls = (producer.submit(**fields(**more)) for producer in producers for _ in range(4))
    answers = await asyncio.gather(*calls, return_exceptions=True)
    accepted = [answer for answer in answers if isinstance(answer, Submitted)]
    refused = [answer for answer in answers if isinstance(answer, QueueFull)]
    assert len(accepted) + len(refused) == len(answers)
    return accepted, refused


# --- lanes ---------------------------------------------------------------------
@pytest.mark.case("B33")
async def test_a_lane_holds_its_jobs_and_not_one_more(each_redis_url: str, namespace: str) -> None:
    """Fifty producers race for the last places; those that lose are told the bound and when to come again."""
    async with hand(each_redis_url, namespace) as worker:
        async with racing(each_redis_url, namespace, lane_jobs=70) as producers:
            accepted, refused = await submit_all(producers)
        assert (len(accepted), len(refused)) == (70, 130)
        assert {error.limit for error in refused} == {"70 jobs in latency:short"}
        assert {error.retry_after for error in refused} == {1.0}
        claims = await worker.claim()
        assert {claim.job.id for claim in claims} == {job.id for job in accepted}
        await worker.finish_all(claims)


@pytest.mark.case("B33")
async def test_a_lane_holds_its_tokens_and_not_one_more(each_redis_url: str, namespace: str) -> None:
    """A job counts its prompt and its longest answer: of 200 jobs of 100 tokens 42 fit into 4,250."""
    job: dict[str, Any] = {"prompt_tokens": 40, "sampling": {"max_tokens": 60}}
    async with hand(each_redis_url, namespace) as worker:
        async with racing(each_redis_url, namespace, lane_tokens=4250) as producers:
            accepted, refused = await submit_all(producers, **job)
        assert (len(accepted), len(refused)) == (42, 158)
        assert {error.limit for error in refused} == {"4250 tokens in latency:short"}
        await worker.finish_all(await worker.claim())


async def test_places_are_free_when_jobs_end_not_when_they_are_claimed(
    redis_url: str, namespace: str
) -> None:
    """Those in hand count: their prompts lie on the server until they have ended. Other lanes are not concerned."""
    async with (
        hand(redis_url, namespace) as worker,
        Producer(redis_url, namespace=namespace, lane_jobs=2, lane_tokens=200) as producer,
    ):
        job: dict[str, Any] = {"prompt_tokens": 40, "sampling": {"max_tokens": 60}}
        for _ in range(2):
            await producer.submit(**fields(**job))
        claims = await worker.claim()
        with pytest.raises(QueueFull):
            await producer.submit(**fields(**job))
        await producer.submit(**fields(slo="throughput"))
        await worker.finish(claims[0])
        await producer.submit(**fields(**job))
        with pytest.raises(QueueFull):
            await producer.submit(**fields(**job))
        await worker.finish(claims[1])
        await worker.finish_all(await worker.claim())


async def test_one_job_larger_than_the_bound_goes_alone(redis_url: str, namespace: str) -> None:
    """Or it could never run."""
    async with (
        hand(redis_url, namespace) as worker,
        Producer(redis_url, namespace=namespace, lane_tokens=100) as producer,
    ):
        await producer.submit(**fields(sampling={"max_tokens": 5000}))
        with pytest.raises(QueueFull):
            await producer.submit(**fields(sampling={"max_tokens": 1}))
        await worker.finish(await worker.claim_one())


# --- the server's memory ----------------------------------------------------------
async def fill(client: Any, share: float) -> None:
    """Use up memory until `share` of the most is used."""
    number = 0
    while True:
        info = await client.info("memory")
        if info["used_memory"] >= share * info["maxmemory"]:
            return
        await client.set(f"filler:{number}", b"x" * 20_000)
        number += 1


async def overfill(client: Any) -> None:
    """Use up all of it, and so much more that nothing fits when a buffer is freed: one value may go beyond the most."""
    await fill(client, 0.9)
    await client.setrange("filler:last", 1_000_000, b"x")


async def empty(client: Any) -> None:
    """Give it back."""
    async for key in client.scan_iter(match="filler:*", count=1000):
        await client.unlink(key)


@pytest.fixture(params=sorted(binaries()))
async def small(start_server: StartServer, request: pytest.FixtureRequest) -> AsyncIterator[tuple[str, Any]]:
    """A server of 5 MB, each kind in turn, as an address and as seen from outside."""
    url = start_server(*FULL, name=request.param).url
    async with redis.asyncio.Redis.from_url(url, protocol=2) as client:
        yield url, client


async def test_admission_stops_at_60_percent_of_the_memory(small: tuple[str, Any]) -> None:
    """What is left is for results. A patient submit goes on by itself once there is room."""
    url, client = small
    async with hand(url, "t") as worker, Producer(url, namespace="t") as producer:
        first = await producer.submit(**fields(idempotency_key="first"))
        await fill(client, 0.61)

        async def refusal() -> QueueFull | None:
            try:
                await producer.submit(**fields())
            except QueueFull as error:
                return error
            return None

        error = await wait_until(refusal, "a refusal")
        assert (error.limit, error.retry_after) == ("60% of the memory of the server", 5.0)
        assert (await producer.submit(**fields(idempotency_key="first"))) == Submitted(
            first.id, duplicate=True
        )
        await worker.finish_all(await worker.claim())
        assert (await producer.result(first.id, timeout=10)).text == first.id
        async with Producer(url, namespace="t", full_wait_s=30) as patient:
            waiting = asyncio.create_task(patient.submit(**fields()))
            await empty(client)
            job = await asyncio.wait_for(waiting, 20)
        assert (await producer.status(job.id)).state is JobState.QUEUED


async def test_at_full_memory_nothing_is_accepted_and_nothing_half_stored(small: tuple[str, Any]) -> None:
    """By a producer that had been at work, and by one that begins now; those who wait hear of the end all the same."""
    url, client = small
    async with (
        hand(url, "t") as worker,
        Producer(url, namespace="t") as producer,
        Producer(url, namespace="t", recheck_s=(0.05, 0.1)) as late,
    ):
        job = await producer.submit(**fields())
        claim = await worker.claim_one()
        await overfill(client)
        before = {key async for key in client.scan_iter()}
        for each in (producer, late):
            with pytest.raises(QueueFull, match="memory of the server"):
                await each.submit(**fields(idempotency_key="k"))
        assert {key async for key in client.scan_iter()} <= before
        waiter = asyncio.create_task(late.result(job.id))
        with pytest.raises(NoAnswer):
            await worker.finish(claim)
        assert (await client.xpending(Keys("t").of_job(job.id).lane(LANE), "workers"))["pending"] == 1
        assert (await producer.status(job.id)).result is None
        await empty(client)
        await worker.finish(claim)
        assert (await asyncio.wait_for(waiter, 10)).text == "done"
        assert (await client.xpending(Keys("t").of_job(job.id).lane(LANE), "workers"))["pending"] == 0


@pytest.mark.timeout(90)
@pytest.mark.case("A17")
async def test_a_worker_keeps_its_results_until_there_is_room(small: tuple[str, Any], tmp_path: Path) -> None:
    """No job is acknowledged without a result, none runs twice, and all goes on by itself."""
    url, client = small
    options = {"engine.seats": 8, "engine.base_s": 0.02}
    async with (
        Producer(url, namespace="t", check_model=False) as producer,
        WorkerProcess(url, "t", tmp_path / "worker.log", **options) as worker,
    ):
        await worker.ready()
        sampling = {"max_tokens": 50, "ignore_eos": True}
        jobs = [await producer.submit(**fields(sampling=sampling)) for _ in range(8)]
        await worker.says("job.first_token", times=8)
        await overfill(client)
        lane = Keys("t").of_model("demo", 0).lane(LANE)
        await worker.says("queue.unavailable")
        assert (await client.xpending(lane, "workers"))["pending"] == 8
        await empty(client)
        results = [await producer.result(job.id, timeout=30) for job in jobs]
        assert {(result.state, result.attempt) for result in results} == {(JobState.COMPLETED, 1)}
        assert await client.xlen(lane) == 0

"""A producer whose server, or the way to it, misbehaves: nothing twice, nothing mixed up, nothing silent."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from typing import Any, cast
from urllib.parse import urlsplit

import pytest
import redis.asyncio
from redis.asyncio.connection import AbstractConnection
from tests.conftest import StartServer
from tests.support.hand import hand
from tests.support.proxy import Proxy
from tests.support.wait import wait_until

from laneway.producer import (
    JobFields,
    JobNotFound,
    Producer,
    QueueFull,
    QueueUnavailable,
    ResultTimeout,
    SubmitStopped,
    Submitted,
    SubmitUncertain,
)
from laneway.schemas import JobState, Tokens

pytestmark = pytest.mark.redis


@pytest.fixture
async def proxy(redis_url: str) -> AsyncIterator[Proxy]:
    """A way to the shared server that can be broken."""
    async with Proxy(urlsplit(redis_url).port or 0) as proxy:
        yield proxy


def fields(**more: Any) -> JobFields:
    return cast(JobFields, {"model": "demo", "prompt": "Hello", **more})


async def shown(producer: Producer, job_id: str) -> str:
    """All text that a stream showed."""
    return "".join([event.text async for event in producer.stream(job_id) if isinstance(event, Tokens)])


def is_submit(request: bytes) -> bool:
    return b":lane:" in request


# --- lost replies ------------------------------------------------------------
async def test_a_submit_whose_reply_is_lost_is_asked_for_once_more(
    redis_url: str, namespace: str, proxy: Proxy
) -> None:
    """Under the same job id: the queue holds one job, and the caller gets its id."""
    async with hand(redis_url, namespace) as worker, Producer(proxy.url, namespace=namespace) as producer:
        await producer.submit(**fields())
        proxy.drop_reply(is_submit)
        submitted = await producer.submit(**fields())
        assert (proxy.dropped, submitted.duplicate) == (1, False)
        claims = await worker.claim()
        assert [claim.job.id for claim in claims][1:] == [submitted.id]
        await worker.finish_all(claims)


async def test_a_connection_cut_while_it_lay_idle_is_not_seen(
    redis_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uvloop says RuntimeError then, where asyncio says ConnectionError. The submit goes out once more."""
    send, cuts = AbstractConnection.send_packed_command, 0

    async def cut(self: Any, *arguments: Any, **options: Any) -> None:
        nonlocal cuts
        cuts += 1
        if cuts == 1:
            raise RuntimeError(
                "unable to perform operation on <TCPTransport closed=True>; the handler is closed"
            )
        await send(self, *arguments, **options)

    async with hand(redis_url, namespace) as worker, Producer(redis_url, namespace=namespace) as producer:
        await producer.submit(**fields())
        monkeypatch.setattr(AbstractConnection, "send_packed_command", cut)
        submitted = await producer.submit(**fields())
        claims = await worker.claim()
        assert [claim.job.id for claim in claims][1:] == [submitted.id]
        await worker.finish_all(claims)


async def test_a_submit_that_stays_unanswered_says_how_to_ask(
    redis_url: str, namespace: str, proxy: Proxy
) -> None:
    """It is never sent a third time. The error carries the job id; with an idempotency key repeating it is safe."""
    async with hand(redis_url, namespace) as worker, Producer(proxy.url, namespace=namespace) as producer:
        proxy.drop_reply(is_submit, times=2)
        with pytest.raises(
            SubmitUncertain, match=r"ask for the status of .* or submit it again under the same"
        ) as caught:
            await producer.submit(**fields(idempotency_key="order-1"))
        assert (await producer.status(caught.value.job_id)).state is JobState.QUEUED
        assert await producer.submit(**fields(idempotency_key="order-1")) == Submitted(
            caught.value.job_id, duplicate=True
        )
        await worker.finish(await worker.claim_one())


async def test_a_chunk_whose_reply_is_lost_is_in_the_queue_once(
    redis_url: str, namespace: str, proxy: Proxy
) -> None:
    """No job of it twice, none missing, wherever the reply broke off."""
    async with (
        hand(redis_url, namespace) as worker,
        Producer(proxy.url, namespace=namespace, chunk=50) as producer,
    ):
        proxy.drop_reply(is_submit, times=1)
        ids = [submitted.id async for submitted in producer.submit_many(fields() for _ in range(200))]
        claims = await worker.claim()
        assert sorted(claim.job.id for claim in claims) == sorted(ids)
        assert proxy.dropped == 1
        await worker.finish_all(claims)


async def test_a_chunk_that_stays_unanswered_names_the_first_uncertain_job(
    redis_url: str, namespace: str, proxy: Proxy
) -> None:
    """What was answered before was handed out."""
    taken = []
    async with Producer(proxy.url, namespace=namespace, chunk=50) as producer:

        async def submit_all() -> None:
            async for submitted in producer.submit_many(fields() for _ in range(100)):
                taken.append(submitted)
                if len(taken) == 50:
                    proxy.drop_reply(is_submit, times=2)

        with pytest.raises(SubmitStopped, match="job 50 of submit_many: no reply to submit") as caught:
            await submit_all()
        assert isinstance(caught.value.cause, SubmitUncertain)
        assert (await producer.status(caught.value.cause.job_id)).state is JobState.QUEUED


async def test_any_one_lost_reply_is_made_good(redis_url: str, namespace: str, proxy: Proxy) -> None:
    """Looking, cancelling, attaching, listening: every command may be repeated, so its lost reply is asked for again."""
    async with hand(redis_url, namespace) as worker, Producer(proxy.url, namespace=namespace) as producer:
        job = await producer.submit(**fields(stream=True))
        for part in (b"HGETALL", b":cancel:"):
            proxy.drop_reply(lambda request, part=part: part in request)  # type: ignore[misc]
        assert (await producer.status(job.id)).state is JobState.QUEUED
        waiter = asyncio.create_task(producer.result(job.id))
        assert await producer.cancel(job.id) is JobState.CANCELLED
        assert (await waiter).state is JobState.CANCELLED
        assert proxy.dropped == 2
        assert await worker.claim() == []


# --- cancelled callers -------------------------------------------------------
@pytest.mark.case("A13")
async def test_cancelled_waits_never_mix_up_answers(redis_url: str, namespace: str, proxy: Proxy) -> None:
    """500 waits and looks cut off at random moments on a slow link; every later answer is its own job's."""
    random.seed(13)
    async with hand(redis_url, namespace) as worker, Producer(proxy.url, namespace=namespace) as producer:
        jobs = [submitted.id async for submitted in producer.submit_many(fields() for _ in range(50))]
        await worker.finish_all(await worker.claim())
        proxy.delay_s = 0.1

        async def cut_off(number: int) -> None:
            job_id = random.choice(jobs)
            task: asyncio.Task[Any] = asyncio.create_task(
                producer.result(job_id) if number % 2 else producer.status(job_id)
            )
            await asyncio.wait({task}, timeout=random.random() * 0.25)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            if not task.cancelled():
                assert task.result().job_id == job_id

        await asyncio.gather(*(cut_off(number) for number in range(500)))
        proxy.delay_s = 0.0
        for job_id in jobs:
            assert (await producer.result(job_id)).text == job_id


@pytest.mark.case("A13")
async def test_cancelled_submits_never_mix_up_answers(redis_url: str, namespace: str, proxy: Proxy) -> None:
    """Commands run on the caller's own connection: cut off half-way, that connection is thrown away."""
    random.seed(14)
    async with hand(redis_url, namespace) as worker, Producer(proxy.url, namespace=namespace) as producer:
        await producer.submit(**fields())
        proxy.delay_s = 0.005

        async def cut_off() -> None:
            task = asyncio.ensure_future(producer.submit(**fields()))
            await asyncio.wait({task}, timeout=random.random() * 0.02)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        await asyncio.gather(*(cut_off() for _ in range(200)))
        proxy.delay_s = 0.0
        kept = [await producer.submit(**fields(metadata={"mine": str(number)})) for number in range(20)]
        claims = await worker.claim()
        mine = {claim.job.id: claim.job.metadata["mine"] for claim in claims if claim.job.metadata}
        assert mine == {submitted.id: str(number) for number, submitted in enumerate(kept)}
        assert len({claim.job.id for claim in claims}) == len(claims)
        await worker.finish_all(claims)


# --- a server that is away, slow, full, empty --------------------------------
async def test_a_server_that_is_not_there_is_reported_at_once() -> None:
    """One sentence with its address, within the connect time-out."""
    async with Producer("redis://127.0.0.1:1") as producer:
        with pytest.raises(
            QueueUnavailable, match=r"Redis at 127\.0\.0\.1:1 cannot be reached: connection refused"
        ):
            await producer.submit(**fields())


async def test_a_server_that_hangs_costs_the_time_outs_and_no_more(start_server: StartServer) -> None:
    """A half-open link or a frozen server: a submit that was sent is uncertain, a wait times out, and says why."""
    server = start_server()
    async with Producer(server.url, connect_timeout_s=0.3, reply_timeout_s=0.3) as producer:
        job = await producer.submit(**fields())
        server.freeze()
        began = time.monotonic()
        with pytest.raises(SubmitUncertain):
            await producer.submit(**fields(idempotency_key="k"))
        with pytest.raises(ResultTimeout, match="no answer in time"):
            await producer.result(job.id, timeout=1.5)
        assert time.monotonic() - began < 5
        server.thaw()
        await producer.submit(**fields(idempotency_key="k"))
        assert (await producer.status(job.id)).state is JobState.QUEUED


async def test_waits_survive_a_restart_of_the_server(start_server: StartServer, namespace: str) -> None:
    """Killed and started again with its append-only file: the waiter goes on waiting and gets the result."""
    server = start_server()
    async with Producer(server.url, namespace=namespace, recheck_s=(0.05, 0.1)) as producer:
        job = await producer.submit(**fields(stream=True))
        waiter = asyncio.create_task(producer.result(job.id))
        screen = asyncio.create_task(shown(producer, job.id))
        await wait_until(lambda: len(producer._listener._inboxes.get(job.id, ())) == 2, "both to wait")
        server.kill()
        with pytest.raises(
            (QueueUnavailable, SubmitUncertain)
        ):  # uncertain where the loss was not noticed before sending
            await producer.submit(**fields())
        server.start()
        async with hand(server.url, namespace) as worker:
            await worker.finish(await worker.claim_one(), "after the restart")
            assert (await asyncio.wait_for(waiter, 10)).text == "after the restart"
            assert await asyncio.wait_for(screen, 10) == "after the restart"


async def test_waits_do_not_outlast_an_outage_for_ever(start_server: StartServer) -> None:
    """After `outage_s` the caller is told that the server is gone."""
    server = start_server()
    async with Producer(server.url, outage_s=0.3, recheck_s=(0.05, 0.1)) as producer:
        job = await producer.submit(**fields())
        server.kill()
        with pytest.raises(QueueUnavailable):
            await producer.result(job.id)
        with pytest.raises(QueueUnavailable):
            await anext(producer.stream(job.id))


async def test_a_flushed_server_is_a_reported_loss(start_server: StartServer) -> None:
    """Nobody waits for a job that no longer exists; new jobs are accepted as on a new server."""
    server = start_server()
    async with Producer(server.url, recheck_s=(0.05, 0.1), output_ttl_s=3) as producer:
        job = await producer.submit(**fields())
        waiter = asyncio.create_task(producer.result(job.id))
        await wait_until(lambda: producer._listener._inboxes, "the waiter to listen")
        async with redis.asyncio.Redis.from_url(server.url, protocol=2) as client:
            await client.flushall()
            await client.script_flush()
        with pytest.raises(JobNotFound):
            await asyncio.wait_for(waiter, 10)
        again = await producer.submit(**fields())
        assert (await producer.status(again.id)).state is JobState.QUEUED


@pytest.mark.case("A17")
async def test_a_full_server_is_a_full_queue(start_server: StartServer) -> None:
    """At `maxmemory` a submit is refused with a hint, nothing is half stored, and reading still works."""
    server = start_server("--maxmemory", "6mb", "--maxmemory-policy", "noeviction")
    async with Producer(server.url) as producer:
        job = await producer.submit(**fields())

        async def fill() -> None:
            for _ in range(1000):
                await producer.submit(model="demo", prompt="x" * 50_000)

        with pytest.raises(QueueFull, match="memory of the server") as caught:
            await fill()
        assert caught.value.retry_after > 0
        assert (await producer.status(job.id)).state is JobState.QUEUED


async def test_a_wrong_password_is_named_as_such(start_server: StartServer) -> None:
    """And never repeated."""
    server = start_server()
    async with redis.asyncio.Redis.from_url(server.url, protocol=2) as client:
        await client.config_set("requirepass", "right")
        async with Producer(server.url.replace("//", "//:s3cret@")) as producer:
            with pytest.raises(QueueUnavailable, match="refused the user or the password") as caught:
                await producer.submit(**fields())
        assert "s3cret" not in str(caught.value)
        await client.config_set("requirepass", "")

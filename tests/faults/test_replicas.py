"""Submits that wait for replicas: what they are told when a replica has the job, is cut off, or takes over."""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import pytest
import redis.asyncio
from tests.conftest import NAMES, StartServer
from tests.support.hand import hand
from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.support.wait import wait_until

from laneway.producer import JobFields, Producer, SubmitUncertain

pytestmark = [pytest.mark.redis, pytest.mark.timeout(60)]

ONE = {"throughput": 1}


@pytest.fixture(params=[name for name in NAMES if name != "given"] or ["redis"])
async def pair(request: pytest.FixtureRequest, start_server: StartServer) -> tuple[Server, Server]:
    """A server and its replica, in step."""
    main = start_server("--repl-diskless-sync-delay", "0", name=request.param)
    # A replica that writes its first append-only file ignores SIGTERM.
    follow = ("--replicaof", "127.0.0.1", str(main.port), "--appendonly", "no")
    replica = start_server(*follow, name=request.param)
    await wait_until(lambda: _in_step(main), "a replica in step", timeout=20)
    return main, replica


async def _in_step(main: Server) -> bool:
    async with redis.asyncio.Redis.from_url(main.url, protocol=2) as client:
        return bool(await client.wait(1, 1) == 1)


def fields(**more: Any) -> JobFields:
    return cast(JobFields, {"model": "demo", "prompt": "Hello", "slo": "throughput", **more})


def is_submit(request: bytes) -> bool:
    return b":lane:" in request


async def test_a_job_of_a_durable_class_is_on_a_replica_when_the_submit_returns(
    pair: tuple[Server, Server], namespace: str
) -> None:
    """The first one too, when the server must be taught the script first; other classes do not wait."""
    main, replica = pair
    async with Producer(main.url, namespace=namespace, check_model=False, wait_replicas=ONE) as producer:
        first = await producer.submit(**fields())
        many = [each async for each in producer.submit_many([fields(), fields(slo="latency"), fields()])]
        main.kill()
        async with redis.asyncio.Redis.from_url(replica.url, protocol=2) as client:
            await client.replicaof("NO", "ONE")
    assert [job.replicas for job in (first, *many)] == [1, 1, None, 1]
    async with hand(replica.url, namespace) as worker:
        claims = await worker.claim()
        assert {claim.job.id for claim in claims} >= {job.id for job in (first, *many) if job.replicas}
        await worker.finish_all(claims)


async def test_a_replica_that_is_cut_off_holds_a_submit_up_for_so_long_only(
    pair: tuple[Server, Server], namespace: str
) -> None:
    """The job is accepted, and the caller is told that no replica has it; the same key asks again."""
    main, replica = pair
    options: dict[str, Any] = {
        "check_model": False,
        "listen": False,
        "wait_replicas": ONE,
        "wait_timeout_s": 0.3,
    }
    async with (
        Producer(main.url, namespace=namespace, **options) as producer,
        Producer(main.url, namespace=namespace, **options) as other,
    ):
        replica.freeze()
        asked = time.monotonic()
        job = await producer.submit(**fields(idempotency_key="order-1"))
        assert (job.replicas, job.duplicate) == (0, False)
        assert time.monotonic() - asked >= 0.3
        again = await other.submit(**fields(idempotency_key="order-1"))
        assert (again.id, again.replicas, again.duplicate) == (job.id, 0, True)
        replica.thaw()
        again = await wait_until(lambda: _once_replicated(producer), "a replica that has the job", timeout=20)
        assert (again.id, again.replicas, again.duplicate) == (job.id, 1, True)
    async with hand(main.url, namespace) as worker:
        await worker.finish_all(await worker.claim())


async def _once_replicated(producer: Producer) -> Any:
    submitted = await producer.submit(**fields(idempotency_key="order-1"))
    return submitted if submitted.replicas else None


async def test_a_lost_reply_is_asked_for_with_its_replicas(
    pair: tuple[Server, Server], namespace: str
) -> None:
    """All is sent once more, since replicas confirm what came over the same connection: one job, on one replica."""
    main, _ = pair
    async with (
        Proxy(main.port) as proxy,
        hand(main.url, namespace) as worker,
        Producer(proxy.url, namespace=namespace, wait_replicas=ONE) as producer,
    ):
        await producer.submit(**fields())
        proxy.drop_reply(is_submit)
        job = await producer.submit(**fields())
        assert (proxy.dropped, job.replicas, job.duplicate) == (1, 1, False)
        proxy.drop_reply(is_submit, times=2)
        with pytest.raises(SubmitUncertain):
            await producer.submit(**fields())
        claims = await worker.claim()
        assert len(claims) == 3
        await worker.finish_all(claims)


async def test_a_connection_cut_while_it_waits_for_replicas_is_no_confirmation(
    pair: tuple[Server, Server], namespace: str
) -> None:
    """On the next connection the whole submit is sent again: by itself the question would be about nothing."""
    main, replica = pair
    options: dict[str, Any] = {
        "check_model": False,
        "listen": False,
        "wait_replicas": ONE,
        "wait_timeout_s": 30,
    }
    async with (
        Proxy(main.port) as proxy,
        Producer(proxy.url, namespace=namespace, **options) as producer,
        redis.asyncio.Redis.from_url(main.url, protocol=2) as admin,
    ):
        assert (await producer.submit(**fields())).replicas == 1
        replica.freeze()
        submit = asyncio.create_task(producer.submit(**fields()))
        first = await wait_until(lambda: _waiting(admin), "the question")
        proxy.cut()
        await wait_until(lambda: _waiting(admin, but=first), "the question once more")
        assert not submit.done()
        replica.thaw()
        assert (await submit).replicas == 1
    async with hand(main.url, namespace) as worker:
        claims = await worker.claim()
        assert len(claims) == 2
        await worker.finish_all(claims)


async def _waiting(admin: redis.asyncio.Redis, but: str = "") -> str:
    """The connection on which somebody waits for replicas, other than `but`."""
    clients = await admin.client_list()
    waiting = [each["id"] for each in clients if each["cmd"] == "wait" and "b" in each["flags"]]
    return next((each for each in waiting if each != but), "")


async def test_without_any_replica_a_submit_says_so(redis_url: str, namespace: str) -> None:
    """It waits its time and is accepted: whether that is enough is the caller's to say."""
    async with (
        hand(redis_url, namespace) as worker,
        Producer(
            redis_url, namespace=namespace, wait_replicas={"latency": 2}, wait_timeout_s=0.05
        ) as producer,
    ):
        job = await producer.submit(**fields(slo="latency"))
        assert job.replicas == 0
        await worker.finish_all(await worker.claim())

"""A producer with an outbox: whatever the server or the producer loses, each accepted job gets one outcome."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis.asyncio
from tests.conftest import StartServer
from tests.support.asking import assert_completed, results, submit
from tests.support.hand import hand
from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.support.wait import wait_until
from tests.support.worker_process import MakeWorker

from laneway.producer import (
    InvalidJob,
    JobNotFound,
    OutboxFull,
    OutboxUnusable,
    Producer,
    QueueFull,
    QueueUnavailable,
    SubmitStopped,
    Submitted,
    SyncProducer,
)
from laneway.schemas import JobState, Tokens
from laneway.schemas.cards import ModelCard
from laneway.schemas.ids import JobId

pytestmark = [pytest.mark.redis, pytest.mark.timeout(90)]

MakeProducer = Callable[..., Producer]


@pytest.fixture
def server(start_server: StartServer) -> Server:
    """A server that forgets everything when it is killed."""
    return start_server("--appendonly", "no")


@pytest.fixture
def make(server: Server, namespace: str, tmp_path: Path) -> MakeProducer:
    """Makes producers on one file, which look at their jobs often."""

    def made(**options: Any) -> Producer:
        given: dict[str, Any] = {
            "namespace": namespace,
            "outbox": tmp_path / "outbox.db",
            "outbox_check_s": (0.1, 0.5),
            "recheck_s": (0.05, 0.2),
            "check_model": False,
            **options,
        }
        return Producer(given.pop("url", server.url), **given)

    return made


def held(producer: Producer) -> set[JobId]:
    """Jobs in the producer's outbox."""
    assert producer._outbox is not None
    return set(producer._outbox._entries)


async def flush(server: Server) -> None:
    async with redis.asyncio.Redis.from_url(server.url, protocol=2) as admin:
        await admin.flushall()
        await admin.script_flush()


async def until_seen(producer: Producer) -> None:
    """Return when every outcome has been seen."""
    await wait_until(lambda: not held(producer), "an empty outbox")


# --- what the server loses ---------------------------------------------------
@pytest.mark.parametrize("loss", ["flushed", "killed without its data"])
async def test_jobs_queued_and_running_outlive_the_server_s_memory(
    worker: MakeWorker, make: MakeProducer, server: Server, loss: str
) -> None:
    """Four run, the others wait, some have ended: the application sees one outcome of each, without doing anything."""
    async with make() as producer:
        jobs = await submit(producer, 30, tokens=20)
        waiting = asyncio.create_task(results(producer, jobs))
        await wait_until(lambda: all(map(producer._listener.awaited, jobs)), "all to be waited for")
        async with worker(url=server.url, lease_s=5, **{"engine.seats": 4}) as only:
            await only.says("job.settled", times=4)
            if loss == "flushed":
                await flush(server)
            else:
                server.kill()
                server.start()
            found = await waiting
        assert {result.state for result in found} == {JobState.COMPLETED}
        assert [result.job_id for result in found] == jobs
        await until_seen(producer)


async def test_a_lost_job_waits_as_if_it_were_queued(make: MakeProducer, server: Server) -> None:
    """For `status`, `result` and `stream`. Without the outbox it would be unknown."""
    async with make() as producer:
        job = await producer.submit(model="demo", prompt="Hello", stream=True)
        waiter = asyncio.create_task(producer.result(job.id))
        screen = asyncio.create_task(_text(producer, job.id))
        await wait_until(lambda: len(producer._listener._inboxes.get(job.id, ())) == 2, "both to wait")
        await flush(server)
        assert (await producer.status(job.id)).state is JobState.QUEUED
        async with hand(server.url, producer.settings.namespace) as worker:
            (claim,) = await wait_until(worker.claim, "the job to come again")
            assert claim.job.id == job.id
            await worker.say(claim, "An ", "answer")
            await worker.finish(claim, "An answer")
        assert (await waiter).text == "An answer"
        assert await screen == "An answer"
        await until_seen(producer)


async def test_what_was_seen_is_not_run_again(make: MakeProducer, server: Server) -> None:
    """The outbox keeps jobs, not results: a server that is emptied afterwards has lost the result, and nothing runs."""
    async with make() as producer:
        job = await producer.submit(model="demo", prompt="Hello")
        async with hand(server.url, producer.settings.namespace) as worker:
            await worker.finish(await worker.claim_one())
            assert (await producer.result(job.id)).text == "done"
            await until_seen(producer)
            await flush(server)
            with pytest.raises(JobNotFound):
                await producer.status(job.id)
    async with make() as producer:
        assert held(producer) == set()


async def test_a_result_that_was_read_ends_the_keeping(make: MakeProducer, server: Server) -> None:
    """Also when the server has lost job and result before anything else looked at them, or is away."""
    async with (
        make(outbox_check_s=(60, 60)) as producer,
        hand(server.url, producer.settings.namespace) as worker,
    ):
        job = await producer.submit(model="demo", prompt="Hello")
        waiting = asyncio.create_task(producer.result(job.id))
        await worker.finish(await worker.claim_one())
        await waiting
        server.kill()
        await until_seen(producer)
        server.start()
        await worker.queue.open(ModelCard(name="demo"))
        assert await worker.claim() == []


async def test_an_outcome_that_was_reached_before_the_loss_is_not_replaced(
    make: MakeProducer, server: Server
) -> None:
    """A worker that still had the job in hand stores its outcome; what was sent again meanwhile is dropped unread."""
    async with make() as producer, hand(server.url, producer.settings.namespace) as worker:
        job = await producer.submit(model="demo", prompt="Hello")
        claim = await worker.claim_one()
        await flush(server)
        await wait_until(lambda: _known(producer, job.id), "the job to come again")
        await worker.finish(claim, "from before")
        assert (await producer.result(job.id)).text == "from before"
        await worker.queue.open(ModelCard(name="demo"))
        assert await worker.claim() == []
        await until_seen(producer)


# --- what the producer loses -------------------------------------------------
async def test_a_new_producer_goes_on_with_the_jobs_of_a_killed_one(
    worker: MakeWorker, make: MakeProducer, server: Server, tmp_path: Path, namespace: str
) -> None:
    """Killed right after its submits, and the server flushed as well: the file is all there is, and it is enough."""
    script = f"""
import sys
from laneway.producer import SyncProducer
producer = SyncProducer({server.url!r}, namespace={namespace!r}, outbox={str(tmp_path / "outbox.db")!r})
sampling = {{"max_tokens": 5, "ignore_eos": True}}
for number in range(20):
    print(producer.submit(model="demo", prompt=f"job {{number}}", sampling=sampling).id, flush=True)
sys.stdin.read()
"""
    other = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    assert other.stdin is not None
    jobs = [JobId((await asyncio.to_thread(other.stdout.readline)).strip()) for _ in range(20)]
    other.send_signal(signal.SIGKILL)
    other.wait()
    other.stdout.close()
    other.stdin.close()
    await flush(server)
    async with worker(url=server.url) as only, make() as producer:
        await only.ready()
        assert_completed(await results(producer, jobs), attempt=1)
        await until_seen(producer)


async def test_one_that_is_closed_leaves_its_jobs_to_the_next(make: MakeProducer, server: Server) -> None:
    """No coroutine and no thread of it is left; jobs whose end nobody has seen stay in the file."""
    threads = set(threading.enumerate())
    async with make() as producer:
        job = await producer.submit(model="demo", prompt="Hello")
    left = {task.get_name() for task in asyncio.all_tasks()} - {asyncio.current_task().get_name()}  # type: ignore[union-attr]
    assert not [name for name in left if "laneway" in name]
    assert not [thread for thread in set(threading.enumerate()) - threads if "laneway" in thread.name]
    async with make() as producer, hand(server.url, producer.settings.namespace) as worker:
        assert held(producer) == {job.id}
        await worker.finish(await worker.claim_one())
        await until_seen(producer)


# --- when the server cannot be asked -----------------------------------------
async def test_jobs_submitted_while_the_server_is_away_are_done_later(
    worker: MakeWorker, make: MakeProducer, server: Server
) -> None:
    """One and many, of a producer that knows the server and of one that never reached it."""
    async with make() as producer:
        first = await submit(producer, 1, tokens=2)
        server.kill()
        with pytest.raises(InvalidJob):
            await producer.submit(model="demo", prompt="Hello", sampling={"temperature": -1})
        one = await producer.submit(model="demo", prompt="Hello", sampling={"max_tokens": 2})
        assert one.confirmed is False
    async with make() as producer:
        sampling = {"max_tokens": 2}
        more = [{"model": "demo", "prompt": f"job {number}", "sampling": sampling} for number in range(10)]
        many = [submitted async for submitted in producer.submit_many(more)]  # type: ignore[arg-type]
        assert not any(submitted.confirmed for submitted in many)
        with pytest.raises(QueueUnavailable):
            await producer.status(one.id)
        server.start()
        async with worker(url=server.url) as only:
            await only.ready()
            jobs = [*first, one.id, *(submitted.id for submitted in many)]
            assert {result.state for result in await results(producer, jobs)} == {JobState.COMPLETED}
            await until_seen(producer)


async def test_a_submit_that_stays_unanswered_is_accepted(make: MakeProducer, server: Server) -> None:
    """Whether the server got it or not: the job is in the queue once."""
    async with Proxy(urlsplit(server.url).port or 0) as proxy, make(url=proxy.url) as producer:
        await producer.submit(model="demo", prompt="first")
        proxy.drop_reply(lambda request: b":lane:" in request, times=2)
        job = await producer.submit(model="demo", prompt="second")
        assert job.confirmed is False
        async with hand(server.url, producer.settings.namespace) as worker:
            claims = await worker.claim()
            assert [claim.job.id for claim in claims][1:] == [job.id]
            await worker.finish_all(claims)
            await until_seen(producer)
            assert await worker.claim() == []


# --- what is not sent again --------------------------------------------------
async def test_a_deadline_counts_from_the_first_acceptance(make: MakeProducer, server: Server) -> None:
    """What is sent again has what is left of it; where nothing is left, the job has expired."""
    async with make() as producer:
        long = await producer.submit(model="demo", prompt="long", deadline_ms=600_000)
        short = await producer.submit(
            model="demo", prompt="short", deadline_ms=300, metadata={"custom_id": "7"}
        )
        server.kill()
        accepted = asyncio.get_running_loop().time()
        await wait_until(lambda: asyncio.get_running_loop().time() > accepted + 0.3, "the deadline to pass")
        server.start()
        result = await producer.result(short.id)
        assert (result.state, result.metadata) == (JobState.EXPIRED, {"custom_id": "7"})
        async with hand(server.url, producer.settings.namespace) as worker:
            (claim,) = await wait_until(worker.claim, "the other to come again")
            assert claim.job.id == long.id
            assert claim.job.deadline_ms is not None
            assert 0 < claim.job.deadline_ms <= 600_000 - 300
            await worker.finish(claim)
        await until_seen(producer)


@pytest.mark.parametrize("when", ["lost", "away"])
async def test_a_cancelled_job_is_not_sent_again(make: MakeProducer, server: Server, when: str) -> None:
    """Cancelled when the server has lost it, or cannot be asked; also when the producer ends in between."""
    async with make(outbox_check_s=(60, 60)) as producer:
        job = await producer.submit(model="demo", prompt="Hello")
        server.kill()
        if when == "lost":
            server.start()
            assert await producer.cancel(job.id) is JobState.CANCELLED
        else:
            assert await producer.cancel(job.id) is JobState.QUEUED
    if when == "away":
        server.start()
    async with make() as producer, hand(server.url, producer.settings.namespace) as worker:
        assert (await producer.result(job.id)).state is JobState.CANCELLED
        await until_seen(producer)
        assert await worker.claim() == []


async def test_a_cancel_that_did_not_arrive_reaches_a_job_that_lives(
    make: MakeProducer, server: Server
) -> None:
    """The server was only away, and has the job: it is cancelled there."""
    async with Proxy(urlsplit(server.url).port or 0) as proxy, make(url=proxy.url) as producer:
        job = await producer.submit(model="demo", prompt="Hello")
        proxy.cut(refuse=True)
        assert await producer.cancel(job.id) is JobState.QUEUED
    async with make() as producer, hand(server.url, producer.settings.namespace) as worker:
        assert (await producer.result(job.id)).state is JobState.CANCELLED
        await until_seen(producer)
        assert await worker.claim() == []


async def test_what_is_refused_is_not_kept(make: MakeProducer) -> None:
    """Invalid jobs, and those for which there is no room: the application knows, and nobody sends them later."""
    async with make(lane_jobs=2) as producer:
        with pytest.raises(InvalidJob):
            await producer.submit(model="demo", prompt="")
        kept = [(await producer.submit(model="demo", prompt="Hello")).id for _ in range(2)]
        with pytest.raises(QueueFull):
            await producer.submit(model="demo", prompt="Hello")
        assert held(producer) == set(kept)
    async with make() as producer:
        assert held(producer) == set(kept)


async def test_it_is_bounded(make: MakeProducer) -> None:
    """In jobs and in bytes. A chunk of `submit_many` is kept whole or not at all."""
    async with make(outbox_jobs=3, chunk=2) as producer:
        jobs = [{"model": "demo", "prompt": "Hello"} for _ in range(4)]
        with pytest.raises(SubmitStopped, match=r"job 2 of submit_many: the outbox is full \(3 jobs\)"):
            [submitted async for submitted in producer.submit_many(jobs)]  # type: ignore[arg-type]
        await producer.submit(model="demo", prompt="Hello")
        with pytest.raises(OutboxFull, match="3 jobs"):
            await producer.submit(model="demo", prompt="Hello")
    async with make(outbox_bytes=2000) as producer:
        with pytest.raises(OutboxFull, match="2000 bytes"):
            await producer.submit(model="demo", prompt="Hello" * 1000)


async def test_a_file_that_cannot_be_used_is_refused(make: MakeProducer, tmp_path: Path) -> None:
    """When the producer is opened; the blocking one does not leave its thread behind."""
    (tmp_path / "outbox.db").write_text("something else " * 100)
    threads = set(threading.enumerate())
    with pytest.raises(OutboxUnusable, match="file is not a database"):
        async with make():
            pass
    with (
        pytest.raises(OutboxUnusable, match="file is not a database"),
        SyncProducer(outbox=str(tmp_path / "outbox.db")),
    ):
        pass
    assert not [thread for thread in set(threading.enumerate()) - threads if "laneway" in thread.name]


# --- idempotency keys --------------------------------------------------------
async def test_a_key_is_one_job_across_losses_and_producers(
    make: MakeProducer, server: Server, namespace: str
) -> None:
    """Kept here: told without the server. Submitted by another producer: from then on kept here too."""
    async with make() as producer, Producer(server.url, namespace=namespace, check_model=False) as other:
        own = await producer.submit(model="demo", prompt="a", idempotency_key="a")
        theirs = await other.submit(model="demo", prompt="b", idempotency_key="b")
        assert await producer.submit(model="demo", prompt="b", idempotency_key="b") == Submitted(
            theirs.id, duplicate=True
        )
        server.kill()
        again = await producer.submit(model="demo", prompt="a", idempotency_key="a")
        assert (again.id, again.duplicate) == (own.id, True)
        server.start()
        async with hand(server.url, namespace) as worker:
            claims: dict[JobId, Any] = {}
            while len(claims) < 2:
                claims |= {
                    claim.job.id: claim for claim in await wait_until(worker.claim, "jobs to come again")
                }
            assert set(claims) == {own.id, theirs.id}
            await worker.finish_all(list(claims.values()))
        await until_seen(producer)


async def test_a_job_whose_key_was_taken_meanwhile_gets_that_job_s_outcome(
    make: MakeProducer, server: Server, namespace: str
) -> None:
    """Submitted while the server was away, and by somebody else before it was sent."""
    async with Proxy(urlsplit(server.url).port or 0) as proxy, make(url=proxy.url) as producer:
        proxy.cut(refuse=True)
        job = await producer.submit(model="demo", prompt="a", idempotency_key="a")
    async with Producer(server.url, namespace=namespace, check_model=False) as other:
        first = await other.submit(model="demo", prompt="a", idempotency_key="a")
        async with make() as producer, hand(server.url, namespace) as worker:
            await worker.finish(await worker.claim_one(), "of the first")
            assert (await other.result(first.id)).text == "of the first"
            found = await producer.result(job.id)
            assert (found.job_id, found.text) == (job.id, "of the first")
            await until_seen(producer)
            assert await worker.claim() == []


async def _text(producer: Producer, job_id: str) -> str:
    return "".join([event.text async for event in producer.stream(job_id) if isinstance(event, Tokens)])


async def _known(producer: Producer, job_id: JobId) -> bool:
    return (await producer.status(job_id)).record is not None

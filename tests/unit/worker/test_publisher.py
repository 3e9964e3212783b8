"""How events reach consumers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import cast

import pytest

from laneway.schemas.events import Ended, Event, Tokens
from laneway.schemas.ids import JobId
from laneway.worker import publisher as publishing
from laneway.worker.errors import QueueUnavailable
from laneway.worker.link import Link
from laneway.worker.ports import JobQueue
from laneway.worker.publisher import Publisher
from laneway.worker.telemetry import Telemetry

JOB = JobId("job")


class Server:
    """The one call that a publisher makes. It is answered when `gate` is open."""

    def __init__(self) -> None:
        self.flushes: list[dict[str, list[Event]]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.unread: set[str] = set()
        self.failures = 0

    async def publish(self, events: Mapping[str, Sequence[Event]]) -> set[str]:
        await self.gate.wait()
        if self.failures:
            self.failures -= 1
            raise QueueUnavailable("away")
        self.flushes.append({output: list(sent) for output, sent in events.items()})
        return self.unread & set(events)


@asynccontextmanager
async def running(publisher: Publisher) -> AsyncIterator[None]:
    task = asyncio.create_task(publisher.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def make(server: Server, **options: object) -> Publisher:
    return Publisher(cast(JobQueue, server), Link(Telemetry()), **options)  # type: ignore[arg-type]


def token(seq: int, job: JobId = JOB) -> Tokens:
    return Tokens(job_id=job, attempt=1, seq=seq, text="t")


END = Ended(job_id=JOB, attempt=1, state="completed")


async def test_events_of_one_moment_share_a_flush() -> None:
    """All that a step brought for a stream is one entry, and all streams are one call."""
    server = Server()
    publisher = make(server)
    publisher.post(["a", "b"], token(0))
    publisher.post(["a"], token(1))
    async with running(publisher):
        await publisher.flush(1)
    assert server.flushes == [{"a": [token(0), token(1)], "b": [token(0)]}]


async def test_while_one_flush_is_under_way_the_next_gathers() -> None:
    """The server sets the pace: never two flushes at once, so a slow server gets fewer and larger ones."""
    server = Server()
    publisher = make(server)
    async with running(publisher):
        server.gate.clear()
        publisher.post(["a"], token(0))
        await asyncio.sleep(0)
        for seq in range(1, 50):
            publisher.post(["a"], token(seq))
            await asyncio.sleep(0)
        server.gate.set()
        await publisher.flush(1)
    assert [len(flush["a"]) for flush in server.flushes] == [1, 49]


async def test_a_full_stream_loses_tokens_but_never_an_end() -> None:
    """Memory is bounded per stream; the gap shows in `seq`, and the end of the job always comes."""
    server = Server()
    publisher = make(server, most_tokens=3)
    for seq in range(10):
        publisher.post(["a"], token(seq))
    publisher.post(["a"], END)
    async with running(publisher):
        await publisher.flush(1)
    assert server.flushes[0]["a"] == [token(0), token(1), token(2), END]
    assert publisher.dropped == 7


async def test_nothing_is_sent_to_a_stream_that_nobody_reads_until_somebody_attaches() -> None:
    """A vanished consumer stops the streaming; one that attaches gets it at once."""
    server = Server()
    server.unread = {"a"}
    publisher = make(server)
    async with running(publisher):
        publisher.post(["a"], token(0))
        await publisher.flush(1)
        publisher.post(["a"], token(1))
        publisher.welcome("a")
        publisher.post(["a"], token(2))
        await publisher.flush(1)
    assert server.flushes == [{"a": [token(0)]}, {"a": [token(2)]}]


async def test_an_end_outlives_an_outage_and_tokens_do_not() -> None:
    """After a lost reply tokens would be doubled; an end may come twice."""
    server = Server()
    server.failures = 2
    publisher = make(server)
    publisher.post(["a"], token(0))
    publisher.post(["a"], END)
    async with running(publisher):
        await publisher.flush(2)
    assert server.flushes == [{"a": [END]}]


async def test_events_of_a_job_that_may_be_somebody_elses_are_withheld() -> None:
    """A worker whose lease is too old says nothing more about the job, even what was gathered before."""
    server = Server()
    other = JobId("other")
    publisher = make(server, is_stale=lambda job_id: job_id == other)
    publisher.post(["a"], token(0, other))
    publisher.post(["a"], token(0))
    async with running(publisher):
        await publisher.flush(1)
    assert server.flushes == [{"a": [token(0)]}]


async def test_a_forgotten_job_leaves_nothing_behind() -> None:
    """What was gathered of a lost job is not sent."""
    server = Server()
    publisher = make(server)
    publisher.post(["a"], token(0))
    publisher.forget(JOB)
    async with running(publisher):
        await publisher.flush(1)
    assert server.flushes == []


async def test_a_job_that_is_lost_while_its_tokens_are_being_kept_is_not_sent() -> None:
    """Renewal may tell of the loss first: whatever has not left for a consumer by then never does."""
    server = Server()
    other = JobId("other")
    asked, answer = asyncio.Event(), asyncio.Event()

    async def save(jobs: Iterable[JobId]) -> set[JobId]:
        asked.set()
        await answer.wait()
        return set()

    publisher = make(server, save=save)
    publisher.post(["a", "b"], token(0))
    publisher.post(["a"], token(0, other))
    async with running(publisher):
        await asked.wait()
        publisher.forget(JOB)
        answer.set()
        await publisher.flush(1)
    assert server.flushes == [{"a": [token(0, other)]}]


async def test_streams_that_vanished_cost_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command that watches a job has a stream of its own: a worker forgets those that are gone."""
    monkeypatch.setattr(publishing, "UNREAD_S", 0.0)
    server = Server()
    publisher = make(server)
    async with running(publisher):
        for number in range(20):
            server.unread = {f"gone {number}"}
            publisher.post(server.unread, token(number))
            await publisher.flush(1)
    assert len(server.flushes) == 20
    assert len(publisher._unread) <= 1

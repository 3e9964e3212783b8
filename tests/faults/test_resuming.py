"""One uninterrupted stream, whatever becomes of the workers that make it. Real processes, real signals."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.installations import RedisInstallation
from tests.support.wait import wait_until
from tests.support.worker_process import WorkerProcess

from laneway.producer.client import Producer
from laneway.schemas.events import Event, Restarted, Started, Tokens
from laneway.schemas.ids import JobId
from laneway.schemas.outcome import Completed, Result
from laneway.worker.engine.fake_text import fake_answer, fake_text, tokenise

pytestmark = [pytest.mark.redis, pytest.mark.timeout(90)]

TOKENS = 100
STEP_S = 0.01
PROMPT = "a long story"
WHOLE = fake_answer(tokenise(PROMPT, 32_000), TOKENS)
"""What an undisturbed run answers."""

MakeWorker = Callable[..., WorkerProcess]


@pytest.fixture
def worker(redis_url: str, namespace: str, tmp_path: Path) -> MakeWorker:
    def make(name: str = "a", **options: object) -> WorkerProcess:
        given: dict[str, Any] = {"lease_s": 1.5, "engine.seats": 32, "engine.base_s": STEP_S, **options}
        return WorkerProcess(redis_url, namespace, tmp_path / f"{name}.log", **given)

    return make


@pytest.fixture
async def producer(redis_url: str, namespace: str) -> AsyncIterator[Producer]:
    async with Producer(redis_url, namespace=namespace, check_model=False) as made:
        yield made


class Viewer:
    """A consumer of one job, and all that it saw."""

    def __init__(self, producer: Producer, job: JobId) -> None:
        self.seen: list[Event] = []
        self._end = asyncio.create_task(self._watch(producer, job))

    async def _watch(self, producer: Producer, job: JobId) -> Result:
        async for event in producer.stream(job):
            self.seen.append(event)
        return await producer.result(job, 20)

    def tokens(self) -> list[Tokens]:
        return [event for event in self.seen if isinstance(event, Tokens)]

    async def saw(self, tokens: int) -> None:
        await wait_until(lambda: len(self.tokens()) >= tokens, f"{tokens} tokens", timeout=20)

    async def result(self) -> Result:
        async with asyncio.timeout(40):
            return await self._end


async def submit(producer: Producer, **fields: Any) -> JobId:
    sampling = {"max_tokens": TOKENS, "ignore_eos": True, **fields.pop("sampling", {})}
    return (await producer.submit(model="demo", prompt=PROMPT, sampling=sampling, **fields)).id


def assert_uninterrupted(viewer: Viewer, result: Result, attempt: int) -> None:
    """Every token once and in order, as if nothing had happened; text, usage and end are those of the whole answer."""
    assert not any(isinstance(event, Restarted) for event in viewer.seen)
    assert [event.seq for event in viewer.tokens()] == list(range(TOKENS))
    assert tuple(token for event in viewer.tokens() for token in event.token_ids) == WHOLE
    assert "".join(event.text for event in viewer.tokens()) == fake_text(WHOLE)
    assert_whole(result, attempt)


def assert_whole(result: Result, attempt: int) -> None:
    assert isinstance(result.outcome, Completed)
    (choice,) = result.outcome.choices
    assert (choice.text, choice.token_ids, choice.finish_reason) == (fake_text(WHOLE), WHOLE, "length")
    assert result.outcome.usage.output_tokens == TOKENS
    assert result.outcome.usage.prompt_tokens == len(tokenise(PROMPT, 32_000))
    assert result.attempt == attempt


@pytest.mark.case("B30")
async def test_after_a_kill_the_stream_goes_on(worker: MakeWorker, producer: Producer) -> None:
    """`kill -9` in the middle of an answer: the next worker generates only the rest, and the consumer notices nothing."""
    async with worker("a") as first:
        await first.ready()
        viewer = Viewer(producer, await submit(producer, stream=True))
        await viewer.saw(30)
        first.send(signal.SIGKILL)
        async with worker("b") as second:
            result = await viewer.result()
            assert_uninterrupted(viewer, result, attempt=2)
            (resumed,) = await second.says("job.resumed")
            assert resumed["tokens"] >= 30
    (started,) = [event for event in viewer.seen if isinstance(event, Started) and event.attempt == 2]
    assert started.resumes_at == resumed["tokens"]


async def test_after_a_drain_the_stream_goes_on(worker: MakeWorker, producer: Producer) -> None:
    """SIGTERM: what is handed back goes on elsewhere at the very token where it stood."""
    async with worker("a", drain_s=0, lease_s=60) as first:
        await first.ready()
        viewer = Viewer(producer, await submit(producer, stream=True))
        quiet = await submit(producer)
        await viewer.saw(30)
        first.send(signal.SIGTERM)
        assert await first.exit_code() == 0
        async with worker("b") as second:
            assert_uninterrupted(viewer, await viewer.result(), attempt=2)
            assert_whole(await producer.result(quiet, 20), attempt=2)
            assert len(await second.says("job.resumed", times=2)) == 2


async def test_a_frozen_worker_adds_nothing_once_it_was_fenced(
    worker: MakeWorker, producer: Producer
) -> None:
    """SIGSTOP past the lease: what it generates when it wakes goes neither to the answer nor to the consumer."""
    async with worker("a") as first:
        await first.ready()
        viewer = Viewer(producer, await submit(producer, stream=True))
        await viewer.saw(30)
        first.send(signal.SIGSTOP)
        async with worker("b") as second:
            await second.says("job.resumed")
            first.send(signal.SIGCONT)
            assert_uninterrupted(viewer, await viewer.result(), attempt=2)
            await first.says("job.lost")


async def test_a_job_that_nobody_watches_goes_on_from_about_where_it_was(
    worker: MakeWorker, producer: Producer, redis_url: str, namespace: str
) -> None:
    """Without a consumer tokens are kept once a second; one that comes later sees the whole answer from the beginning."""
    async with worker("a", **{"engine.base_s": 0.03}) as first:
        await first.ready()
        job = await submit(producer, slo="throughput")
        ends = RedisInstallation(redis_url, namespace)
        await wait_until(lambda: ends.kept(job), "kept events")
        await ends.close()
        first.send(signal.SIGKILL)
        async with worker("b") as second:
            (resumed,) = await second.says("job.resumed")
            assert resumed["tokens"] >= 1
            async with Producer(redis_url, namespace=namespace, check_model=False) as late:
                viewer = Viewer(late, job)
                assert_uninterrupted(viewer, await viewer.result(), attempt=2)


@pytest.mark.case("B30")
async def test_a_job_with_a_seed_starts_again_and_says_so(worker: MakeWorker, producer: Producer) -> None:
    """Where the sampler's state cannot be restored, the consumer is told to forget what it has."""
    async with worker("a") as first:
        await first.ready()
        viewer = Viewer(producer, await submit(producer, stream=True, sampling={"seed": 3}))
        await viewer.saw(10)
        first.send(signal.SIGKILL)
        async with worker("b"):
            result = await viewer.result()
    at = next(n for n, event in enumerate(viewer.seen) if isinstance(event, Restarted))
    assert viewer.seen[at] == Restarted(job_id=result.job_id, attempt=2)
    again = [event.text for event in viewer.seen[at:] if isinstance(event, Tokens)]
    assert "".join(again) == result.text

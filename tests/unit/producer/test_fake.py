"""`FakeProducer` behaves like the real one, with the test in the place of the worker."""

from __future__ import annotations

import asyncio
import inspect
import threading

import pytest

from laneway.producer import (
    InvalidJob,
    JobNotFound,
    Producer,
    ProducerClosed,
    QueueFull,
    ResultTimeout,
    SubmitStopped,
    SyncProducer,
)
from laneway.producer.testing import FakeProducer
from laneway.schemas import Ended, Failed, JobError, JobState, Started, Tokens
from laneway.schemas.ids import new_job_id


async def test_scripted_answers_complete_jobs_at_once() -> None:
    """The shortest test of an application: what does it do with this answer?"""
    producer = FakeProducer(answer=lambda job: f"model {job.model} says hello")
    job = await producer.submit(model="demo", prompt="hi")
    assert (await producer.result(job.id)).text == "model demo says hello"


async def test_any_outcome_can_be_scripted() -> None:
    """How does the application take a failure?"""
    producer = FakeProducer(answer=Failed(error=JobError(code="engine_error", message="it broke")))
    job = await producer.submit(model="demo", prompt="hi")
    assert (await producer.result(job.id)).state is JobState.FAILED


async def test_the_test_decides_when_a_job_goes_on() -> None:
    """Tokens and the end come when the test says so, and waiters wake up."""
    producer = FakeProducer()
    job = await producer.submit(model="demo", prompt="hi", stream=True)
    stream = producer.stream(job.id)
    waiter = asyncio.ensure_future(producer.result(job.id))
    producer.emit(job.id, "Hel")
    assert isinstance(await anext(stream), Started)
    assert await anext(stream) == Tokens(job_id=job.id, attempt=1, seq=0, text="Hel")
    producer.complete(job.id, "Hello")
    assert [event.text async for event in stream if isinstance(event, Tokens)] == ["lo"]
    assert (await waiter).text == "Hello"
    assert isinstance([event async for event in producer.stream(job.id)][-1], Ended)


async def test_jobs_are_checked_as_by_the_real_one() -> None:
    """A test must not pass with a job that Redis would never see."""
    with pytest.raises(InvalidJob, match="did you mean 'prompt'"):
        await FakeProducer().submit(model="demo", promt="x")  # type: ignore[call-arg]
    with pytest.raises(InvalidJob, match=r"^model: expected a name"):
        await FakeProducer().submit(prompt="x")  # type: ignore[call-arg]


async def test_what_was_submitted_can_be_asserted() -> None:
    """By the fields as the application wrote them; the job is returned for closer looks."""
    producer = FakeProducer()
    await producer.submit(model="demo", prompt="one", slo="throughput")
    await producer.submit(model="demo", prompt="two")
    assert producer.assert_submitted(prompt="one", slo="throughput") == producer.jobs[0]
    assert producer.assert_submitted(2, model="demo") == producer.jobs[1]
    with pytest.raises(AssertionError, match=r"expected at least one job with .*, got 0 of 2 submitted"):
        producer.assert_submitted(prompt="three")


async def test_idempotency_cancel_status_and_refusals() -> None:
    """The rest of the interface, as an application meets it."""
    producer = FakeProducer()
    job = await producer.submit(model="demo", prompt="x", idempotency_key="k")
    again = await producer.submit(model="demo", prompt="x", idempotency_key="k")
    assert (again.id, again.duplicate) == (job.id, True)
    assert (await producer.status(job.id)).state is JobState.QUEUED
    with pytest.raises(ResultTimeout):
        await producer.result(job.id, timeout=0.001)
    assert await producer.cancel(job.id) is JobState.CANCELLED
    assert (await producer.result(job.id)).state is JobState.CANCELLED
    with pytest.raises(JobNotFound):
        await producer.result(new_job_id("demo", 0))
    producer.refuse_next = QueueFull("100 jobs in latency:short", 1.0)
    with pytest.raises(QueueFull):
        await producer.submit(model="demo", prompt="x")
    assert len(producer.jobs) == 1


async def test_submit_many_stops_at_the_first_refused_job() -> None:
    """Those before it were handed out; the error tells which one it was."""
    producer = FakeProducer()
    taken = []

    async def submit_all() -> None:
        async for submitted in producer.submit_many(
            [{"model": "demo", "prompt": text} for text in ("a", "b", "", "d")]
        ):
            taken.append(submitted)  # noqa: PERF401 - a comprehension would be lost with the error

    with pytest.raises(SubmitStopped) as caught:
        await submit_all()
    assert (len(taken), caught.value.index) == (2, 2)
    assert isinstance(caught.value.cause, InvalidJob)


async def test_a_closed_producer_says_so() -> None:
    """Also to those who still wait."""
    producer = FakeProducer()
    job = await producer.submit(model="demo", prompt="x")
    waiter = asyncio.ensure_future(producer.result(job.id))
    await asyncio.sleep(0)
    await producer.close()
    with pytest.raises(ProducerClosed):
        await waiter


def test_code_that_uses_the_synchronous_facade_can_be_tested_too() -> None:
    """The facade goes around a fake; the test completes jobs from its own thread."""
    fake = FakeProducer()
    with SyncProducer(producer=fake) as producer:
        job = producer.submit(model="demo", prompt="hi", stream=True)
        threading.Timer(0.01, fake.complete, (job.id, "Hello")).start()
        assert producer.result(job.id, timeout=10).text == "Hello"
        assert (
            "".join(event.text for event in producer.stream(job.id) if isinstance(event, Tokens)) == "Hello"
        )
        ids = list(producer.submit_many([{"model": "demo", "prompt": "a"}, {"model": "demo", "prompt": "b"}]))
        assert len(ids) == 2
        assert producer.cancel(ids[0].id) is JobState.CANCELLED
        assert producer.status(ids[1].id).state is JobState.QUEUED
    with pytest.raises(ProducerClosed):
        producer.result(job.id)


@pytest.mark.parametrize("kind", [FakeProducer, SyncProducer])
def test_every_way_to_produce_offers_the_same(kind: type) -> None:
    """A method added to `Producer` is added to its relatives, with the same parameters."""
    for name, method in vars(Producer).items():
        if not name.startswith("_") and inspect.isfunction(method):
            own = vars(kind).get(name)
            assert own is not None, f"{kind.__name__} has no {name} of its own"
            assert list(inspect.signature(own).parameters) == list(inspect.signature(method).parameters)

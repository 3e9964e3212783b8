"""The public API as applications write it. Nothing here runs: mypy reads it, and so should whoever changes the API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import assert_type

from laneway.producer import (
    InvalidJob,
    JobFields,
    JobStatus,
    Producer,
    QueueFull,
    Submitted,
    SubmitUncertain,
    SyncProducer,
)
from laneway.producer.testing import FakeProducer
from laneway.schemas import (
    AttemptPolicy,
    Cancelled,
    ChatMessage,
    Completed,
    Ended,
    Event,
    Expired,
    Failed,
    JobState,
    Restarted,
    Result,
    Sampling,
    SloClass,
    Started,
    StructuredOutput,
    Tokens,
)


async def submit(producer: Producer) -> None:
    """Every way to say what a job is."""
    job = await producer.submit(model="demo", prompt="Hello")
    assert_type(job, Submitted)
    assert_type(job.duplicate, bool)
    await producer.submit(model="demo", prompt_token_ids=[1, 2, 3], slo="throughput", bucket="short")
    await producer.submit(
        model="demo",
        messages=[{"role": "user", "content": "Hi"}, ChatMessage(role="assistant", content="Hello")],
        tools=[{"type": "function"}],
        sampling=Sampling(temperature=0, structured_outputs=StructuredOutput(json={"type": "object"})),
        slo=SloClass.LATENCY,
        lora="poet",
        deadline_ms=90_000,
        metadata={"custom_id": "7"},
        attempts=AttemptPolicy(max_attempts=1),
    )
    await producer.submit(
        model="demo", prompt="x", sampling={"max_tokens": 5}, attempts={"max_attempts": 1}, lora=None
    )
    await producer.submit(model="demo", promt="x")  # type: ignore[call-arg]
    await producer.submit(prompt="x")  # type: ignore[call-arg]
    await producer.submit(model="demo", prompt="x", slo="urgent")  # type: ignore[arg-type]


async def wait(producer: Producer, job_id: str) -> str:
    """Outcomes are told apart by their type, and none can be forgotten."""
    result = await producer.result(job_id, timeout=30)
    assert_type(result, Result)
    match result.outcome:
        case Completed(choices=choices, usage=usage):
            return f"{choices[0].text} ({usage.output_tokens} tokens)"
        case Failed(error=error):
            return f"{error.code}: {error.message}"
        case Cancelled() | Expired():
            return result.text


async def follow(producer: Producer, job_id: str) -> None:
    """So are events."""
    async for event in producer.stream(job_id):
        assert_type(event, Event)
        match event:
            case Tokens(text=text):
                print(text, end="")
            case Restarted():
                print("\n--- again ---")
            case Started(attempt=attempt):
                print(attempt)
            case Ended(state=state):
                print(state)


async def many(producer: Producer) -> None:
    """From either kind of source."""

    def source() -> Iterator[JobFields]:
        for number in range(10):
            yield {"model": "demo", "prompt": str(number)}

    async def slow_source() -> AsyncIterator[JobFields]:
        for fields in source():
            yield fields

    assert_type([job async for job in producer.submit_many(source())], list[Submitted])
    async for submitted in producer.submit_many(slow_source(), full_wait_s=60):
        assert_type(submitted, Submitted)


async def errors(producer: Producer) -> None:
    """What is worth catching, with what it carries."""
    try:
        await producer.submit(model="demo", prompt="x", idempotency_key="k")
    except InvalidJob as error:
        print(error.field, error.expected)
    except QueueFull as error:
        print(error.retry_after + 1.0)
    except SubmitUncertain as error:
        assert_type(await producer.status(error.job_id), JobStatus)


async def steer(producer: Producer, job_id: str) -> None:
    """Cancel tells the state."""
    assert_type(await producer.cancel(job_id), JobState)


def blocking() -> None:
    """The same without an event loop."""
    with SyncProducer("redis://localhost:6379/0", namespace="blue", connections=2) as producer:
        job = producer.submit(model="demo", prompt="Hello", stream=True)
        for event in producer.stream(job.id):
            assert_type(event, Event)
        assert_type(producer.result(job.id), Result)


def faked() -> Producer:
    """A fake goes wherever a producer goes."""
    fake = FakeProducer(answer=lambda job: f"echo of {job.model}")
    fake.complete(fake.jobs[0].id, "text")
    return fake

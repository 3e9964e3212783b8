"""`FakeProducer`: test an application without Redis and without a worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from typing import Any, Unpack

from laneway.producer.board import JobStatus
from laneway.producer.client import Producer
from laneway.producer.dead_letters import DeadLetter
from laneway.producer.errors import (
    JobNotFound,
    LetterNotFound,
    ProducerClosed,
    ResultTimeout,
    SubmitStopped,
)
from laneway.producer.fields import JobFields
from laneway.producer.settings import ProducerSettings
from laneway.producer.submitting import Submitted, each
from laneway.schemas.build import build_job, check_model
from laneway.schemas.cards import WorkerCard
from laneway.schemas.errors import InvalidJob, LanewayError
from laneway.schemas.events import Ended, Event, Started, Tokens
from laneway.schemas.ids import JobId, new_job_id
from laneway.schemas.job import Job
from laneway.schemas.outcome import Cancelled, Choice, Completed, Failed, JobError, Outcome, Result, Usage
from laneway.schemas.state import JobState

Answer = str | Outcome | Callable[[Job], str | Outcome | None]
"""What becomes of a job: the text of a completed one, an outcome, or a function that says; None: nothing yet."""


class _Kept:
    """A job with what has happened to it."""

    def __init__(self, job: Job, given: Mapping[str, Any]) -> None:
        self.job = job
        self.given = given
        self.events: list[Event] = []
        self.result: Result | None = None
        self.cancel_asked = False


class FakeProducer(Producer):
    """A `Producer` in memory. Jobs are checked as by the real one, then they wait for the test to end them.

        producer = FakeProducer(answer="Paris")          # or answer=lambda job: ...
        await ask_capital(producer, "France")            # the code under test
        producer.assert_submitted(model="demo", slo="latency")

    Without `answer` the test decides when: `emit`, then `complete`, `fail` or `end`. Those may be called from any
    thread, so that code that uses a `SyncProducer(producer=...)` can be tested too.
    """

    def __init__(self, answer: Answer | None = None) -> None:
        self.settings = ProducerSettings()
        self.answer = answer
        """What becomes of jobs submitted from now on."""
        self.refuse_next: LanewayError | None = None
        """Raised by the next submit, once: `QueueFull("jobs in a lane", 1.0)` for example."""
        self._kept: dict[JobId, _Kept] = {}
        self._keys_seen: dict[str, JobId] = {}
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self._closed = False

    # --- what the test does -----------------------------------------------------
    @property
    def jobs(self) -> list[Job]:
        """All jobs submitted so far, in order."""
        return [kept.job for kept in self._kept.values()]

    def assert_submitted(self, count: int | None = None, **fields: Any) -> Job:
        """The last job that was submitted with these `fields`, as they were given to submit.

        Raises:
            AssertionError: there is none, or not exactly `count` of them.
        """
        found = [
            kept.job
            for kept in self._kept.values()
            if all(name in kept.given and kept.given[name] == value for name, value in fields.items())
        ]
        wanted = "at least one job" if count is None else f"{count} jobs"
        if (count is None and not found) or (count is not None and len(found) != count):
            raise AssertionError(
                f"expected {wanted} with {fields}, got {len(found)} of {len(self._kept)} submitted"
            )
        return found[-1]

    def emit(self, job_id: str, text: str) -> None:
        """Let the job's stream show a little more of its answer."""
        kept = self._unfinished(job_id)
        self._begin(kept)
        seq = sum(isinstance(event, Tokens) for event in kept.events)
        kept.events.append(Tokens(job_id=kept.job.id, attempt=1, seq=seq, text=text))
        self._wake()

    def complete(self, job_id: str, text: str | None = None) -> Result:
        """End the job as completed, with `text`, or with what was emitted so far."""
        kept = self._unfinished(job_id)
        shown = "".join(event.text for event in kept.events if isinstance(event, Tokens))
        text = shown if text is None else text
        if kept.job.stream and text.startswith(shown) and text != shown:
            self.emit(job_id, text[len(shown) :])
        words = len(text.split())  # one word a token is near enough for a test
        usage = Usage(prompt_tokens=kept.job.prompt_tokens, output_tokens=words)
        choice = Choice(text=text, finish_reason="stop")
        return self.end(job_id, Completed(choices=(choice,), usage=usage, lora=kept.job.lora))

    def fail(self, job_id: str, code: str = "engine_error", message: str = "the engine failed") -> Result:
        """End the job as failed."""
        return self.end(job_id, Failed(error=JobError(code=code, message=message)))

    def end(self, job_id: str, outcome: Outcome) -> Result:
        """End the job with any outcome."""
        kept = self._unfinished(job_id)
        self._begin(kept)
        job = kept.job
        kept.result = Result(
            job_id=job.id, outcome=outcome, model=job.model, attempt=1, metadata=job.metadata
        )
        kept.events.append(Ended(job_id=job.id, attempt=1, state=kept.result.state.value))
        self._wake()
        return kept.result

    # --- what the application does ----------------------------------------------
    async def open(self) -> None:
        """See `Producer.open`: nothing to do."""

    async def close(self) -> None:
        """As `Producer.close`: what is asked afterwards raises `ProducerClosed`."""
        self._closed = True
        self._wake()

    async def submit(self, **fields: Unpack[JobFields]) -> Submitted:
        """Check and keep the job. Raises what `Producer.submit` raises for bad fields, and `refuse_next`."""
        return self._submit(fields)

    async def submit_many(
        self, jobs: Iterable[JobFields] | AsyncIterable[JobFields], *, full_wait_s: float | None = None
    ) -> AsyncIterator[Submitted]:
        """See `Producer.submit_many`."""
        index = 0
        async for fields in each(jobs):
            try:
                submitted = self._submit(fields)
            except LanewayError as error:
                raise SubmitStopped(index, error, ()) from None
            yield submitted
            index += 1

    async def result(self, job_id: str, timeout: float | None = None) -> Result:
        """See `Producer.result`."""
        kept = self._find(job_id)
        try:
            async with asyncio.timeout(timeout):
                while kept.result is None:
                    await self._change()
        except TimeoutError:
            raise ResultTimeout(kept.job.id, timeout or 0.0) from None
        return kept.result

    async def stream(self, job_id: str) -> AsyncIterator[Event]:
        """See `Producer.stream`."""
        kept = self._find(job_id)
        shown = 0
        while True:
            while shown < len(kept.events):
                event = kept.events[shown]
                shown += 1
                yield event
                if isinstance(event, Ended):
                    return
            await self._change()

    async def status(self, job_id: str) -> JobStatus:
        """See `Producer.status`."""
        kept = self._find(job_id)
        state = kept.result.state if kept.result else JobState.RUNNING if kept.events else JobState.QUEUED
        return JobStatus(job_id=kept.job.id, state=state, result=kept.result)

    async def workers(self) -> list[WorkerCard]:
        """See `Producer.workers`: there are none."""
        return []

    async def cancel(self, job_id: str) -> JobState:
        """See `Producer.cancel`. Here it takes effect at once."""
        kept = self._find(job_id)
        if kept.result is None:
            self.end(job_id, Cancelled())
        return (await self.status(job_id)).state

    async def dead_letters(
        self, model: str | None = None, *, error: str | None = None, older_s: float | None = None
    ) -> AsyncIterator[DeadLetter]:
        """See `Producer.dead_letters`. Nothing is ever put aside here."""
        if self._closed:
            raise ProducerClosed
        none: tuple[DeadLetter, ...] = ()
        for letter in none:
            yield letter

    async def dead_letter(self, letter_id: str) -> DeadLetter:
        """See `Producer.dead_letter`."""
        raise LetterNotFound(letter_id)

    async def replay(self, letter: DeadLetter) -> Submitted:
        """See `Producer.replay`."""
        raise LetterNotFound(letter.id)

    async def purge(self, letters: Iterable[DeadLetter]) -> int:
        """See `Producer.purge`."""
        return 0

    # --- inside -----------------------------------------------------------------
    def _submit(self, fields: Mapping[str, Any]) -> Submitted:
        if self._closed:
            raise ProducerClosed
        if self.refuse_next is not None:
            refusal, self.refuse_next = self.refuse_next, None
            raise refusal
        given = dict(fields)
        model = check_model(given.get("model"))
        if "id" in given:
            raise InvalidJob("id", "nothing: the producer makes the id", "an id")
        job = build_job(id=new_job_id(model, 0), **given)
        key = job.idempotency_key
        if key is not None and key in self._keys_seen:
            return Submitted(self._keys_seen[key], duplicate=True)
        if key is not None:
            self._keys_seen[key] = job.id
        self._kept[job.id] = _Kept(job, given)
        answer = self.answer(job) if callable(self.answer) else self.answer
        if isinstance(answer, str):
            self.complete(job.id, answer)
        elif answer is not None:
            self.end(job.id, answer)
        return Submitted(job.id)

    def _begin(self, kept: _Kept) -> None:
        if not kept.events:
            kept.events.append(Started(job_id=kept.job.id, attempt=1))

    def _find(self, job_id: str) -> _Kept:
        if self._closed:
            raise ProducerClosed
        kept = self._kept.get(JobId(job_id))
        if kept is None:
            raise JobNotFound(JobId(job_id))
        return kept

    def _unfinished(self, job_id: str) -> _Kept:
        kept = self._find(job_id)
        if kept.result is not None:
            raise AssertionError(f"job {job_id} has ended already: {kept.result.state.value}")
        return kept

    async def _change(self) -> None:
        entry = (asyncio.get_running_loop(), asyncio.Event())
        self._waiting.append(entry)
        try:
            await entry[1].wait()
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)
        if self._closed:
            raise ProducerClosed

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for loop, event in waiting:
            loop.call_soon_threadsafe(event.set)

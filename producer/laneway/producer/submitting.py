"""From fields to lanes: building jobs, sending them, and what the server says to that."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from laneway.producer.errors import (
    LetterNotFound,
    OutboxFull,
    OutboxUnusable,
    QueueFull,
    SubmitStopped,
    SubmitUncertain,
)
from laneway.producer.fields import JobFields
from laneway.producer.link import MEMORY_RETRY_AFTER, Command, Link, ReplyLost, Wait, checked
from laneway.producer.listener import Listener
from laneway.producer.models import ModelCatalog, check_against, check_deadline
from laneway.producer.settings import ProducerSettings
from laneway.schemas.build import build_job, check_model
from laneway.schemas.errors import InvalidJob, LanewayError
from laneway.schemas.ids import JobId, choose_partition, new_job_id, parse_job_id
from laneway.schemas.job import Job
from laneway.schemas.keys import Keys, Lane
from laneway.schemas.script import Script
from laneway.schemas.wire import INLINE_BYTES, encode_job

_FULL_RETRY_AFTER = 1.0  # seconds: the time in which a worker takes jobs from a full lane
_UNSAID_TOKENS = 256  # answer tokens of a job that does not say how many it wants: about a page

TokenCounter = Callable[[Any], int | None]
"""Counts the tokens of a prompt: given its text, or its list of messages. None: it can't say."""


class Submitted(Struct, frozen=True):
    """A job that is in the queue, or in the outbox on its way there."""

    id: JobId
    duplicate: bool = False
    """The idempotency key was known: this is the id of the job submitted under it before."""
    replicas: int | None = None
    """How many replicas were known to have it within `wait_timeout_s`. None: `wait_replicas` asks for none."""
    confirmed: bool = True
    """The server has it. False: only the outbox is known to have it, and goes on sending it."""


Answer = Submitted | LanewayError
"""What became of a job that was sent."""
Send = Callable[[Sequence[Job], float], Awaitable[list[Answer]]]
"""Sends jobs, waiting for room for so many seconds; what became of each. Raises `QueueUnavailable`."""


class Place(Struct, frozen=True):
    """Where a dead letter lies: the key of its stream and its entry there."""

    letter_id: str
    stream: str
    entry: str


class Submitter:
    """Makes jobs and puts them into their lanes."""

    def __init__(
        self,
        link: Link,
        keys: Keys,
        models: ModelCatalog,
        listener: Listener,
        settings: ProducerSettings,
        *,
        count_tokens: TokenCounter | None,
    ) -> None:
        self._link = link
        self._keys = keys
        self._models = models
        self._listener = listener
        self._settings = settings
        self._count_tokens = count_tokens
        self._script = Script("laneway.producer", "submit")
        self.accept: Send = self.send
        """Takes jobs that the application submits; an outbox stands here in between."""

    async def submit(self, fields: Mapping[str, Any]) -> Submitted:
        """One job. See `Producer.submit`."""
        job = await self.build(fields)
        answer = (await self.accept([job], self._settings.full_wait_s))[0]
        if isinstance(answer, LanewayError):
            raise answer
        return answer

    async def submit_many(
        self, jobs: Iterable[JobFields] | AsyncIterable[JobFields], full_wait_s: float | None
    ) -> AsyncIterator[Submitted]:
        """Many jobs. See `Producer.submit_many`."""
        wait = self._settings.full_wait_s if full_wait_s is None else full_wait_s
        done = 0
        async for fields in _chunks(jobs, self._settings.chunk):
            built, refusal = await self._build_until_refused(fields)
            answers = await self._accept_chunk(built, wait)
            for index, answer in enumerate(answers):
                if isinstance(answer, LanewayError):
                    rest = enumerate(answers[index + 1 :], done + index + 1)
                    accepted = [(at, later) for at, later in rest if isinstance(later, Submitted)]
                    raise SubmitStopped(done + index, answer, accepted)
                yield answer
            done += len(built)
            if refusal is not None:
                raise SubmitStopped(done, refusal, ())

    async def _accept_chunk(self, jobs: Sequence[Job], wait: float) -> Sequence[Answer]:
        try:
            return await self.accept(jobs, wait)
        except (OutboxFull, OutboxUnusable) as error:
            return [error] * len(jobs)

    async def replay(self, job: Job, place: Place) -> Submitted:
        """Put `job`, which has an idempotency key, in the place of a dead letter, which goes in the same step.

        Raises:
            LetterNotFound: nothing lies there (any more), and no job was submitted in its stead under that key.
            QueueFull, QueueUnavailable, SubmitUncertain: see `Producer.submit`. Repeating is safe.
        """
        job = replace(job, reply_to=self._listener.output if self._settings.listen else None)
        answer = (await self.send([job], self._settings.full_wait_s, place))[0]
        if isinstance(answer, LanewayError):
            raise answer
        return answer

    async def build(self, fields: Mapping[str, Any]) -> Job:
        """A checked job, as far as it can be checked without a worker.

        Raises:
            InvalidJob: see `build_job`, `check_against`; `UnknownModel`, `DeadlineInfeasible`.
        """
        if not isinstance(fields, Mapping):
            raise InvalidJob("job", "a mapping of fields", type(fields).__name__)
        given = dict(fields)
        model = check_model(given.pop("model", None))
        if given.pop("id", None) is not None:
            raise InvalidJob("id", "nothing: the producer makes the id", "an id")
        card = await self._models.card(model)
        if given.get("reply_to") is None and (self._settings.listen or given.get("stream")):
            given["reply_to"] = self._listener.output
        if self._count_tokens is not None and given.get("prompt_tokens") is None:
            given["prompt_tokens"] = self._counted(given)
        job = build_job(id=new_job_id(model, 0), model=model, **given)
        check_against(card, job)
        if self._settings.infeasible == "refuse":
            check_deadline(card, job)
        partition = choose_partition(job.lora or job.idempotency_key or os.urandom(8).hex(), card.partitions)
        return job if partition == 0 else replace(job, id=new_job_id(model, partition))

    def _counted(self, given: Mapping[str, Any]) -> int | None:
        text = given.get("prompt") or given.get("messages")
        return None if text is None or self._count_tokens is None else self._count_tokens(text)

    async def _build_until_refused(
        self, chunk: Sequence[Mapping[str, Any]]
    ) -> tuple[list[Job], InvalidJob | None]:
        built: list[Job] = []
        for fields in chunk:
            try:
                built.append(await self.build(fields))
            except InvalidJob as error:
                return built, error
        return built, None

    async def send(self, jobs: Sequence[Job], full_wait_s: float, place: Place | None = None) -> list[Answer]:
        """What became of each job. Those that find no room are sent again until `full_wait_s` is over.

        Raises:
            QueueUnavailable: nothing was sent.
        """
        if any(job.reply_to == self._listener.output for job in jobs):
            await self._listener.ensure()
        for job in jobs:
            if job.stream:
                self._listener.mark(job.id)
        answers: dict[JobId, Answer] = {}
        until = time.monotonic() + full_wait_s
        waiting = list(jobs)
        while waiting:
            answers.update(await self._send_once(waiting, place))
            full = {id: error for id, error in answers.items() if isinstance(error, QueueFull)}  # noqa: A001
            waiting = [job for job in waiting if job.id in full]
            left = until - time.monotonic()
            if not waiting or left <= 0:
                break
            await asyncio.sleep(min(left, *(full[job.id].retry_after for job in waiting)))
        return [answers[job.id] for job in jobs]

    async def _send_once(self, jobs: Sequence[Job], place: Place | None) -> dict[JobId, Answer]:
        calls = [self._call(job, place) for job in jobs]
        wait = self._wait(jobs)
        try:
            replies = await self._link.run(self._script, calls, wait)
        except ReplyLost as lost:
            replies = lost.replies
        confirmed = replies[len(jobs) + 1 :]  # nothing, where it was not asked for or not said
        replicas = confirmed[0] if confirmed and isinstance(confirmed[0], int) else 0
        answers: dict[JobId, Answer] = {}
        for index, job in enumerate(jobs):
            if index < len(replies):
                answers[job.id] = self._answer(job, replies[index], place, replicas)
            else:
                answers[job.id] = SubmitUncertain(job.id, job.idempotency_key)
        return answers

    def _wait(self, jobs: Sequence[Job]) -> Wait | None:
        """What replicas are to be asked for, after `jobs`."""
        most = max(self._settings.wait_replicas.get(job.slo.value, 0) for job in jobs)
        key = self._keys.of_job(jobs[0].id).written
        return Wait(key, most, self._settings.wait_timeout_s) if most else None

    def _call(self, job: Job, place: Place | None) -> Command:
        settings, lane = self._settings, _lane(job)
        at = self._keys.of_job(job.id)
        keys = [at.lane(lane), at.job(job.id), at.body(job.id), at.bell, at.load, at.memory]
        if job.idempotency_key is not None:
            keys.append(at.idempotency(job.idempotency_key))
        if place is not None:
            keys.append(place.stream)
        data = encode_job(job)
        arguments = (
            job.id,
            data,
            "1" if len(data) > INLINE_BYTES else "0",
            lane.name,
            round(settings.record_ttl_s * 1000) + (job.deadline_ms or 0),
            round(settings.idempotency_ttl_s * 1000),
            settings.lane_jobs,
            settings.lane_tokens,
            _tokens(job),
            job.reply_to or "",
            place.entry if place is not None else "",
        )
        return self._script.command(keys, arguments)

    def _answer(self, job: Job, reply: Any, place: Place | None, replicas: int) -> Answer:
        try:
            word, job_id, _, waiting = checked(reply)
        except LanewayError as error:
            return error
        if word == b"FULL":
            settings = self._settings
            full = waiting >= settings.lane_jobs
            bound = f"{settings.lane_jobs} jobs" if full else f"{settings.lane_tokens} tokens"
            return QueueFull(f"{bound} in {_lane(job).name}", _FULL_RETRY_AFTER)
        if word == b"MEMORY":
            return QueueFull("60% of the memory of the server", MEMORY_RETRY_AFTER)
        if place is not None and word == b"GONE":
            return LetterNotFound(place.letter_id)
        asked = self._settings.wait_replicas.get(job.slo.value, 0) > 0
        return Submitted(JobId(job_id.decode()), word == b"KNOWN", replicas if asked else None)


def _lane(job: Job) -> Lane:
    return Lane(parse_job_id(job.id)[1], job.slo, job.bucket)


def _tokens(job: Job) -> int:
    """What the job may cost in tokens, as the bound on a lane's tokens counts it."""
    return job.prompt_tokens + job.sampling.n * (job.sampling.max_tokens or _UNSAID_TOKENS)


async def each(items: Iterable[JobFields] | AsyncIterable[JobFields]) -> AsyncIterator[JobFields]:
    """The items of either kind of iterable."""
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


async def _chunks(
    items: Iterable[JobFields] | AsyncIterable[JobFields], size: int
) -> AsyncIterator[list[JobFields]]:
    chunk: list[JobFields] = []
    async for item in each(items):
        chunk.append(item)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk

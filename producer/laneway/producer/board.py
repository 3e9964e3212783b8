"""Looking at jobs on the server: one look for everybody who asks at the same time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Protocol

from msgspec import Struct

from laneway.producer.errors import JobNotFound, ProducerClosed, QueueUnavailable
from laneway.producer.link import Link, checked
from laneway.producer.listener import Listener
from laneway.producer.settings import ProducerSettings
from laneway.schemas.errors import LanewayError, UnreadableEntry
from laneway.schemas.ids import JobId
from laneway.schemas.keys import Keys
from laneway.schemas.outcome import Result
from laneway.schemas.record import JobRecord, Kept, read_record
from laneway.schemas.state import FINAL_STATES, JobState
from laneway.schemas.wire import decode_kept, decode_result

_LOOKS = 256
"""Jobs per round trip."""


class JobStatus(Struct, frozen=True, kw_only=True):
    """What is known of a job right now."""

    job_id: JobId
    state: JobState
    record: JobRecord | None = None
    """None where only the result is left."""
    result: Result | None = None
    seen_ms: int = 0
    """When this was so, in milliseconds of Redis' clock since 1970."""


class Keeper(Protocol):
    """Keeps jobs that the server may lose."""

    async def holds(self, job_id: JobId) -> bool:
        """Whether the job will be submitted again; soon, since it was asked for."""

    def saw(self, job_id: JobId) -> None:
        """Somebody here has the job's result: there is no need to submit it again."""


class Board:
    """Reads results and records. Callers wait for futures, never on a connection: cancelling one costs nothing."""

    def __init__(self, link: Link, keys: Keys, settings: ProducerSettings) -> None:
        self._link = link
        self._keys = keys
        self._settings = settings
        self._wanted: dict[JobId, asyncio.Future[JobStatus]] = {}
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.keeper: Keeper | None = None
        """Where jobs are kept that the server may lose."""

    async def close(self) -> None:
        """Tell everybody who still waits that the producer is closed."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for future in self._wanted.values():
            _fail(future, ProducerClosed())
        self._wanted.clear()

    async def look(self, job_id: JobId) -> JobStatus:
        """The job as it stands. One that the server has lost is queued, for as long as the keeper has it.

        Raises:
            JobNotFound: neither a result nor a record exists.
            QueueUnavailable: the server could not be asked.
        """
        if self.keeper is None:
            return await self.ask(job_id)
        try:
            status = await self.ask(job_id)
        except JobNotFound:
            if await self.keeper.holds(job_id):
                return JobStatus(job_id=job_id, state=JobState.QUEUED)
            status = await self.ask(job_id)  # it may have come and ended in between
        if status.result is not None:
            self.keeper.saw(job_id)
        return status

    async def ask(self, job_id: JobId) -> JobStatus:
        """The job as the server knows it. Raises as `look` does."""
        if self._closed:
            raise ProducerClosed
        self._keys.of_job(job_id)  # refuses what is not an id
        future = self._wanted.get(job_id)
        if future is None:
            future = self._wanted[job_id] = asyncio.get_running_loop().create_future()
            future.add_done_callback(_retrieve)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._serve(), name="laneway looks")
        return await asyncio.shield(future)

    async def kept(self, job_id: JobId) -> Sequence[Kept]:
        """The token events that are kept of a running job's answer, from the first on. Raises `QueueUnavailable`."""
        events = await self._link.ask("LRANGE", self._keys.of_job(job_id).kept(job_id), 0, -1)
        try:
            return [decode_kept(event) for event in events]
        except UnreadableEntry:
            return []  # a newer release's: the stored result will tell

    async def wait(self, job_id: JobId, listener: Listener, patience: Patience) -> Result:
        """The job's result, as soon as it is there. Bridges outages for as long as `patience` lasts."""
        pause, longest = self._settings.recheck_s
        with listener.subscribe(job_id, only_end=True) as inbox:
            while True:
                try:
                    await listener.ensure()
                    status = unfinished_or_result(await self.look(job_id))
                except QueueUnavailable as error:
                    await patience.bear(error)
                    continue
                patience.end()
                if status.result is not None:
                    return status.result
                await inbox.take(pause)
                pause = min(longest, pause * 1.5)

    async def _serve(self) -> None:
        while self._wanted:
            jobs = list(self._wanted)[:_LOOKS]
            futures = [self._wanted.pop(job_id) for job_id in jobs]
            try:
                for future, status in zip(futures, await self.read(jobs), strict=True):
                    if isinstance(status, LanewayError):
                        _fail(future, status)
                    elif not future.done():
                        future.set_result(status)
            except BaseException as error:
                for future in futures:
                    _fail(future, error if isinstance(error, LanewayError) else ProducerClosed())
                if not isinstance(error, LanewayError):
                    raise

    async def read(self, jobs: Sequence[JobId]) -> list[JobStatus | LanewayError]:
        """Jobs as the server knows them, in one round trip: the status of each, or why there is none.

        Raises:
            QueueUnavailable: the server could not be asked.
        """
        commands: list[tuple[Any, ...]] = [("TIME",)]
        for job_id in jobs:
            keys = self._keys.of_job(job_id)
            commands += [("HGETALL", keys.job(job_id)), ("GET", keys.result(job_id))]
        time_reply, *replies = await self._link.call(*commands)
        return [
            _status(job_id, time_reply, *replies[2 * index : 2 * index + 2])
            for index, job_id in enumerate(jobs)
        ]


def unfinished_or_result(status: JobStatus) -> JobStatus:
    """`status`, where there is something to wait for or to have. Raises `JobNotFound` for an expired result."""
    if status.result is None and status.state in FINAL_STATES:
        raise JobNotFound(status.job_id)
    return status


class Patience:
    """Waiting out a server that cannot be reached: ever longer pauses, but not for ever."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.trouble: QueueUnavailable | None = None
        """What went wrong at the last try."""
        self._until: float | None = None
        self._pause = 0.05

    async def bear(self, error: QueueUnavailable) -> None:
        """Pause; raises `error` when the trouble has lasted too long."""
        self.trouble = error
        now = time.monotonic()
        if self._until is None:
            self._until = now + self._seconds
        if now >= self._until:
            raise error
        await asyncio.sleep(min(self._pause, self._until - now))
        self._pause = min(2.0, self._pause * 2)

    def end(self) -> None:
        """The server answers again."""
        self.trouble = None
        self._until = None
        self._pause = 0.05


def _status(job_id: JobId, time_reply: Any, record_reply: Any, result_reply: Any) -> JobStatus | LanewayError:
    try:
        now, pairs, value = checked(time_reply), checked(record_reply), checked(result_reply)
        seen_ms = int(now[0]) * 1000 + int(now[1]) // 1000
        record = read_record(job_id, dict(zip(pairs[::2], pairs[1::2], strict=True)))
        if value is not None:
            result = decode_result(value)
            return JobStatus(job_id=job_id, state=result.state, record=record, result=result, seen_ms=seen_ms)
    except LanewayError as error:
        return error
    if record is None:
        return JobNotFound(job_id)
    return JobStatus(job_id=job_id, state=record.state, record=record, seen_ms=seen_ms)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


def _retrieve(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()  # its callers may all be gone: that is no news for anybody

"""Telling workers about jobs: stop one, or send its events to one more place."""

from __future__ import annotations

from laneway.producer.board import Board, JobStatus
from laneway.producer.errors import JobNotFound
from laneway.producer.link import Link, Script, checked
from laneway.producer.settings import ProducerSettings
from laneway.schemas.cards import AttachJob, CancelJob
from laneway.schemas.events import Ended
from laneway.schemas.ids import JobId
from laneway.schemas.keys import GROUP, Keys
from laneway.schemas.outcome import Cancelled, Result, Timeline
from laneway.schemas.record import OUTPUT_EVENTS
from laneway.schemas.state import JobState
from laneway.schemas.wire import encode

_OUTPUT_ENTRIES = 10_000  # as many as a worker keeps


class Steering:
    """Cancels and attachments."""

    def __init__(self, link: Link, keys: Keys, board: Board, settings: ProducerSettings) -> None:
        self._link = link
        self._keys = keys
        self._board = board
        self._settings = settings
        self._cancel = Script("cancel")
        self._attach = Script("attach")

    async def cancel(self, job_id: JobId) -> JobState:
        """See `Producer.cancel`."""
        status = await self._board.look(job_id)
        if status.result is not None:
            return status.state
        at = self._keys.of_job(job_id)
        keys = [
            at.job(job_id),
            at.cancel(job_id),
            at.control,
            at.result(job_id),
            at.body(job_id),
            at.load,
            at.held,
        ]
        arguments = (
            at.tag,
            GROUP,
            round(self._settings.record_ttl_s * 1000),
            encode(CancelJob(job_id=job_id)),
            encode(_cancelled(status)),
            round(self._settings.result_ttl_s * 1000),
        )
        word, outputs = checked(
            (await self._link.run(self._cancel, [self._cancel.command(keys, arguments)]))[0]
        )
        if not word:
            raise JobNotFound(job_id)
        await self._tell_ended(job_id, outputs.decode().split())
        if word == b"ended":
            return (await self._board.look(job_id)).state
        return JobState(word.decode())

    async def attach(self, job_id: JobId, output: str) -> None:
        """Have the job's events sent to `output` as well, from now on. Nothing happens where it has ended."""
        at = self._keys.of_job(job_id)
        keys = [at.job(job_id), at.control, at.result(job_id)]
        message = encode(AttachJob(job_id=job_id, output=output))
        checked((await self._link.run(self._attach, [self._attach.command(keys, (output, message))]))[0])

    async def _tell_ended(self, job_id: JobId, outputs: list[str]) -> None:
        # Settled here, with no worker to tell anybody. A listener that misses this looks for itself in a while.
        event = encode((Ended(job_id=job_id, attempt=0, state=JobState.CANCELLED.value),))
        add = ("NOMKSTREAM", "MAXLEN", "~", _OUTPUT_ENTRIES, "*", OUTPUT_EVENTS, event)
        if outputs:
            await self._link.call(*(("XADD", output, *add) for output in outputs))


def _cancelled(status: JobStatus) -> Result:
    record = status.record
    timeline = Timeline() if record is None else Timeline(submitted_ms=record.submitted)
    return Result(job_id=status.job_id, outcome=Cancelled(), timeline=timeline)

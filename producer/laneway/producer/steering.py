"""Telling workers about jobs: stop one, or send its events to one more place."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from laneway.producer.board import Board, JobStatus
from laneway.producer.errors import JobNotFound, QueueUnavailable
from laneway.producer.link import Link, checked
from laneway.producer.outbox import Outbox
from laneway.producer.settings import ProducerSettings
from laneway.schemas.cards import AttachJob, CancelJob
from laneway.schemas.errors import UnreadableEntry
from laneway.schemas.events import Ended
from laneway.schemas.ids import JobId, parse_job_id
from laneway.schemas.job import Bucket, Job, SloClass
from laneway.schemas.keys import GROUP, Keys, Lane
from laneway.schemas.outcome import Cancelled, Choice, Result, Timeline, Usage
from laneway.schemas.record import ENTRY_DATA, OUTPUT_EVENTS, Kept
from laneway.schemas.script import Script
from laneway.schemas.state import JobState
from laneway.schemas.wire import decode_job, encode

_OUTPUT_ENTRIES = 10_000  # as many as a worker keeps


class Steering:
    """Cancels and attachments."""

    def __init__(self, link: Link, keys: Keys, board: Board, settings: ProducerSettings) -> None:
        self._link = link
        self._keys = keys
        self._board = board
        self._settings = settings
        self._cancel = Script("laneway.producer", "cancel")
        self._attach = Script("laneway.producer", "attach")
        self.outbox: Outbox | None = None

    async def cancel(self, job_id: JobId) -> JobState:
        """See `Producer.cancel`."""
        if self.outbox is None or not await self.outbox.cancel(job_id):
            return await self.cancel_there(job_id)
        try:
            try:
                return await self.cancel_there(job_id)
            except JobNotFound:
                await self.outbox.settle(job_id, Cancelled())
                return (await self._board.look(job_id)).state
        except QueueUnavailable:
            return JobState.QUEUED  # the outbox sees to it when the server is back

    async def cancel_there(self, job_id: JobId) -> JobState:
        """Cancel a job that the server has. Raises as `Producer.cancel`."""
        status = await self._board.ask(job_id)
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
            at.kept(job_id),
        ]
        arguments = (
            at.tag,
            GROUP,
            round(self._settings.record_ttl_s * 1000),
            encode(CancelJob(job_id=job_id)),
            encode(_cancelled(status, await self._waiting_job(status), await self._kept(status))),
            round(self._settings.result_ttl_s * 1000),
        )
        word, outputs = checked(
            (await self._link.run(self._cancel, [self._cancel.command(keys, arguments)]))[0]
        )
        if not word:
            raise JobNotFound(job_id)
        await self._tell_ended(job_id, outputs.decode().split())
        if word == b"ended":
            return (await self._board.ask(job_id)).state
        return JobState(word.decode())

    async def attach(self, job_id: JobId, output: str) -> None:
        """Have the job's events sent to `output` as well, from now on. Nothing happens where it has ended."""
        at = self._keys.of_job(job_id)
        keys = [at.job(job_id), at.control, at.result(job_id)]
        message = encode(AttachJob(job_id=job_id, output=output))
        checked((await self._link.run(self._attach, [self._attach.command(keys, (output, message))]))[0])

    async def _waiting_job(self, status: JobStatus) -> Job | None:
        """The job itself, whose metadata belong into its result; None where it lies no more where its record says."""
        record = status.record
        if record is None or not record.lane or not record.entry:
            return None
        at = self._keys.of_job(status.job_id)
        slo, _, bucket = record.lane.partition(":")
        try:
            lane = at.lane(Lane(parse_job_id(status.job_id)[1], SloClass(slo), Bucket(bucket)))
            entries, body = await self._link.call(
                ("XRANGE", lane, record.entry, record.entry), ("GET", at.body(status.job_id))
            )
            fields = checked(entries)[0][1]
            inline = dict(zip(fields[::2], fields[1::2], strict=True)).get(ENTRY_DATA.encode())
            return decode_job(checked(body) or inline or b"")
        except (UnreadableEntry, ValueError, IndexError):
            return None

    async def _kept(self, status: JobStatus) -> Sequence[Kept]:
        """What earlier attempts generated of a job that waits to go on."""
        begun = status.record is not None and status.record.attempt > 0
        return await self._board.kept(status.job_id) if begun else ()

    async def _tell_ended(self, job_id: JobId, outputs: list[str]) -> None:
        # Settled here, with no worker to tell anybody. A listener that misses this looks for itself in a while.
        event = encode((Ended(job_id=job_id, attempt=0, state=JobState.CANCELLED.value),))
        add = ("NOMKSTREAM", "MAXLEN", "~", _OUTPUT_ENTRIES, "*", OUTPUT_EVENTS, event)
        if outputs:
            await self._link.call(*(("XADD", output, *add) for output in outputs))


def _cancelled(status: JobStatus, job: Job | None, kept: Sequence[Kept]) -> Result:
    record = status.record
    timeline = Timeline() if record is None else Timeline(submitted_ms=record.submitted)
    result = Result(job_id=status.job_id, outcome=_what_there_is(kept), timeline=timeline)
    return result if job is None else replace(result, model=job.model, metadata=job.metadata)


def _what_there_is(kept: Sequence[Kept]) -> Cancelled:
    if not kept:
        return Cancelled()
    tokens = tuple(token for event in kept for token in event.token_ids)
    choice = Choice(text="".join(event.text for event in kept), token_ids=tokens)
    return Cancelled(choices=(choice,), usage=Usage(output_tokens=len(tokens)))

"""Following one job: its events as they come, and what the server has stored where they do not come."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

from laneway.producer.assembly import Assembler
from laneway.producer.board import Board, JobStatus, Patience, unfinished_or_result
from laneway.producer.errors import QueueUnavailable
from laneway.producer.listener import Inbox, Listener
from laneway.producer.settings import ProducerSettings
from laneway.schemas.events import Ended, Event
from laneway.schemas.ids import JobId

Attach = Callable[[JobId, str], Awaitable[object]]
"""Asks the job's worker to publish to one more output stream."""


class Follower:
    """Makes the events of jobs from output streams, from what is kept of unfinished answers and from results."""

    def __init__(self, board: Board, listener: Listener, attach: Attach, settings: ProducerSettings) -> None:
        self._board = board
        self._listener = listener
        self._attach = attach
        self._settings = settings

    async def follow(self, job_id: JobId) -> AsyncIterator[Event]:
        """The job's events, each once, from its first token to `Ended`."""
        assembler = Assembler(job_id)
        patience = Patience(self._settings.outage_s)
        attached = False
        look_back = True  # at the start for what has passed, later for what fills a gap
        with self._listener.subscribe(job_id) as inbox:
            while True:
                try:
                    await self._listener.ensure()
                    status = unfinished_or_result(await self._board.look(job_id))
                    if status.result is not None:
                        for event in assembler.finish(status.result):
                            yield event
                        return
                    if not attached and self._listener.output not in _outputs(status):
                        await self._attach(job_id, self._listener.output)
                    attached = True
                    if look_back:
                        async for event in self._listener.history(job_id, _outputs(status)):
                            for seen in assembler.feed(event):
                                yield seen
                        if assembler.gap:
                            for event in assembler.catch_up(await self._board.kept(job_id)):
                                yield event
                except QueueUnavailable as error:
                    await patience.bear(error)
                    continue
                patience.end()
                had_gap = assembler.gap
                async for event in self._live(assembler, inbox):
                    yield event
                look_back = assembler.gap and not had_gap

    async def _live(self, assembler: Assembler, inbox: Inbox) -> AsyncIterator[Event]:
        """Events as they arrive, until the server should be looked at: at the end, at a new gap, or after a while."""
        had_gap = assembler.gap
        while True:
            event = await inbox.take(self._settings.recheck_s[1])
            if event is None or isinstance(event, Ended):
                return
            for seen in assembler.feed(event):
                yield seen
            if assembler.gap and not had_gap:
                return


def _outputs(status: JobStatus) -> list[str]:
    return status.record.outputs.split() if status.record is not None else []

"""The output stream of this process, and its one reader.

Workers append to the stream only while it exists; it exists while somebody reads it. It is a log: a reader that lost
its connection goes on after the last entry it saw, and a late consumer reads what came before it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

from laneway.producer.errors import QueueFull
from laneway.producer.link import Link, checked
from laneway.producer.settings import ProducerSettings
from laneway.schemas.errors import LanewayError, UnreadableEntry
from laneway.schemas.events import Ended, Event
from laneway.schemas.ids import JobId, new_producer_id
from laneway.schemas.keys import Keys
from laneway.schemas.record import OUTPUT_EVENTS
from laneway.schemas.wire import decode_events, encode

_BLOCK_MS = 2000
_READ_ENTRIES = 500
_INBOX_EVENTS = 4096
"""Events kept for a consumer that does not take them. Older ones go; it then reads them from the stream again."""
_MARKS = 65_536
"""Streaming jobs whose first possible entry is remembered. For others the whole stream is searched."""
_OLDEST = b"-"


class Inbox:
    """Events of one job for one consumer, in the order of the stream."""

    def __init__(self, only_end: bool) -> None:
        self.only_end = only_end
        self._events: deque[Event] = deque(maxlen=1 if only_end else _INBOX_EVENTS)
        self._arrived = asyncio.Event()

    def put(self, event: Event) -> None:
        """Keep `event`, in place of the oldest one when there is no room."""
        self._events.append(event)
        self._arrived.set()

    def poke(self) -> None:
        """Wake the consumer without an event: something may have been missed."""
        self._arrived.set()

    async def take(self, timeout: float) -> Event | None:
        """The next event, or None after `timeout` seconds or a poke."""
        if not self._events:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._arrived.wait()
        if not self._events:
            self._arrived.clear()
            return None
        event = self._events.popleft()
        if not self._events:
            self._arrived.clear()
        return event


class Listener:
    """Reads this process' output stream and hands its events to whoever waits for their jobs."""

    def __init__(self, link: Link, settings: ProducerSettings, keys: Keys) -> None:
        self.output = keys.output(new_producer_id())
        self._ttl_ms = round(settings.output_ttl_s * 1000)
        self._link = link
        # A connection of its own, which waits longer for replies than the server blocks.
        self._reader = Link(
            settings, connections=1, reply_timeout_s=_BLOCK_MS / 1000 + settings.reply_timeout_s
        )
        self._last = b""
        self._marks: OrderedDict[JobId, bytes] = OrderedDict()
        self._inboxes: dict[JobId, list[Inbox]] = {}
        self._start = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self.on_end: Callable[[JobId], None] = lambda job_id: None
        """Called for each job whose end is heard of."""
        self.on_loss: Callable[[], None] = lambda: None
        """Called when the server answers again after it did not, or has lost the stream."""

    async def ensure(self) -> None:
        """Create the stream and begin to read, unless that has happened. Raises `QueueUnavailable`.

        On a server whose memory is used up there is no stream yet: whoever waits has to look.
        """
        if self._task is not None:
            return
        async with self._start:
            if self._task is None:
                try:
                    await self._create()
                except QueueFull:
                    return
                self._task = asyncio.create_task(self._read(), name="laneway output reader")

    async def close(self) -> None:
        """Stop reading, remove the stream and wake everybody."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            with contextlib.suppress(LanewayError):
                await self._reader.ask("DEL", self.output)
        await self._reader.close()
        self._poke_all()

    def mark(self, job_id: JobId) -> None:
        """Note that no event of `job_id` can stand earlier in the stream than what comes now."""
        if self._task is None:
            return
        self._marks[job_id] = self._last
        if len(self._marks) > _MARKS:
            self._marks.popitem(last=False)

    @contextlib.contextmanager
    def subscribe(self, job_id: JobId, *, only_end: bool = False) -> Iterator[Inbox]:
        """The job's events from now on, while the block runs."""
        inbox = Inbox(only_end)
        self._inboxes.setdefault(job_id, []).append(inbox)
        try:
            yield inbox
        finally:
            inboxes = self._inboxes[job_id]
            inboxes.remove(inbox)
            if not inboxes:
                del self._inboxes[job_id]

    def awaited(self, job_id: JobId) -> bool:
        """Whether somebody in this process waits for the job."""
        return job_id in self._inboxes

    def poke(self, job_id: JobId) -> None:
        """Wake whoever waits for the job, without an event."""
        for inbox in self._inboxes.get(job_id, ()):
            inbox.poke()

    async def history(self, job_id: JobId, outputs: Sequence[str]) -> AsyncIterator[Event]:
        """The job's events that still stand in `outputs`, stream by stream, as far as they had come by now."""
        for output in outputs:
            after = self._marks.get(job_id, b"") if output == self.output else b""
            if after and after == self._last:
                continue  # nothing has come since the job was submitted
            start = b"(" + after if after else _OLDEST
            while True:
                entries = await self._link.ask("XRANGE", output, start, "+", "COUNT", _READ_ENTRIES)
                for _, events in _decoded(entries):
                    for event in events:
                        if event.job_id == job_id:
                            yield event
                if len(entries) < _READ_ENTRIES:
                    break
                start = b"(" + entries[-1][0]

    async def _create(self) -> None:
        # MULTI, so that no stream can be left behind without its TTL.
        replies = await self._link.call(
            ("MULTI",),
            ("XADD", self.output, "*", OUTPUT_EVENTS, encode(())),
            ("PEXPIRE", self.output, self._ttl_ms),
            ("EXEC",),
        )
        for reply in replies:  # the reason stands with the command that was refused, not with EXEC
            checked(reply)
        self._last = checked(replies[-1][0])

    async def _read(self) -> None:
        pause = 0.0
        beat_due = 0.0
        while True:
            if pause:
                await asyncio.sleep(pause)
            try:
                if time.monotonic() >= beat_due:
                    beat_due = time.monotonic() + self._ttl_ms / 3000
                    await self._beat()
                await self._read_once()
                if pause:
                    self.on_loss()
                pause = 0.0
            except LanewayError:
                pause = min(2.0, pause * 2 or 0.1)
                beat_due = 0.0

    async def _beat(self) -> None:
        if not await self._link.ask("PEXPIRE", self.output, self._ttl_ms):
            await self._create()
            self._marks.clear()
            self._poke_all()  # whatever was published meanwhile went nowhere
            self.on_loss()

    def _poke_all(self) -> None:
        for job_id in self._inboxes:
            self.poke(job_id)

    async def _read_once(self) -> None:
        read = ("XREAD", "COUNT", _READ_ENTRIES, "BLOCK", _BLOCK_MS, "STREAMS", self.output, self._last)
        for _, entries in await self._reader.ask(*read) or ():
            for entry, events in _decoded(entries):
                self._last = entry
                for event in events:
                    self._deliver(event)

    def _deliver(self, event: Event) -> None:
        for inbox in self._inboxes.get(event.job_id, ()):
            if not inbox.only_end or isinstance(event, Ended):
                inbox.put(event)
        if isinstance(event, Ended):
            self.on_end(event.job_id)


def _decoded(entries: Any) -> Iterator[tuple[bytes, tuple[Event, ...]]]:
    field = OUTPUT_EVENTS.encode()
    for entry, fields in entries or ():
        pairs = dict(zip(fields[::2], fields[1::2], strict=True)) if fields else {}
        try:
            yield entry, decode_events(pairs.get(field, b""))
        except UnreadableEntry:
            yield entry, ()  # not ours: the consumer finds a gap, or nothing at all

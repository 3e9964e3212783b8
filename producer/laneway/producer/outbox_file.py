"""The file of an outbox: one table of jobs. What was written is on the disk when a call returns."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from msgspec import Struct

from laneway.producer.errors import OutboxUnusable, ProducerClosed
from laneway.schemas.ids import JobId

_APPLICATION = 0x1A9E5A7  # marks the file as ours
_FORMAT = 1  # of the tables
_BUSY_S = 1.0  # how long a producer that is about to end may still hold the file
_TABLES = (
    "CREATE TABLE about (namespace TEXT NOT NULL)",
    """CREATE TABLE jobs (id TEXT PRIMARY KEY, place TEXT, since INTEGER NOT NULL, cancelled INTEGER NOT NULL,
      data BLOB NOT NULL)""",
)
_T = TypeVar("_T")

Change = tuple[str, tuple[object, ...]]
"""A statement and its values."""


class Row(Struct, frozen=True):
    """A job in the file, all but its body."""

    id: JobId
    place: str | None
    """The key on the server under which its idempotency key is remembered, if it has one."""
    since_ms: int
    """When it was kept, in milliseconds of this machine's clock since 1970."""
    size: int
    """Bytes of its body."""
    cancelled: bool = False
    """The application does not want it any more."""


def kept(row: Row, data: bytes) -> Change:
    """Keep a job, `data` being its body."""
    values = (row.id, row.place, row.since_ms, row.cancelled, data)
    return "INSERT OR REPLACE INTO jobs VALUES (?, ?, ?, ?, ?)", values


def dropped(job_id: JobId) -> Change:
    """Forget a job."""
    return "DELETE FROM jobs WHERE id = ?", (job_id,)


def cancelled(job_id: JobId) -> Change:
    """Note that a job is not wanted any more."""
    return "UPDATE jobs SET cancelled = 1 WHERE id = ?", (job_id,)


class OutboxFile:
    """The file, held by one producer at a time. Every method blocks, and all belong into one thread."""

    def __init__(self, path: str, namespace: str) -> None:
        self.path = path
        self._namespace = namespace
        self._connection: sqlite3.Connection | None = None

    def open(self) -> list[Row]:
        """Make or take the file; returns what is in it. Prompts lie in it as they are: only its owner may read it.

        Raises:
            OutboxUnusable: another producer has it, it is something else or of another namespace, or the disk refuses.
        """
        try:
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as error:
            raise OutboxUnusable(self.path, (error.strerror or "cannot be opened").lower()) from None
        self._connection = sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None)
        try:
            self._prepare(self._connection)
        except BaseException:
            self.close()
            raise
        rows = self._connection.execute("SELECT id, place, since, length(data), cancelled FROM jobs")
        return [Row(job_id, place, since, size, bool(flag)) for job_id, place, since, size, flag in rows]

    def close(self) -> None:
        """Give the file up."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def write(self, changes: Sequence[Change]) -> None:
        """Make all changes, or none."""
        connection = self._connected()
        connection.execute("BEGIN IMMEDIATE")
        try:
            for words, values in changes:
                connection.execute(words, values)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def read(self, job_ids: Sequence[JobId]) -> dict[JobId, bytes]:
        """The bodies of those jobs that are in the file."""
        words = "SELECT data FROM jobs WHERE id = ?"
        rows = ((job_id, self._connected().execute(words, (job_id,)).fetchone()) for job_id in job_ids)
        return {job_id: row[0] for job_id, row in rows if row is not None}

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("BEGIN EXCLUSIVE")
        try:
            reason = self._check(connection)
            connection.execute("ROLLBACK" if reason else "COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        if reason:
            raise OutboxUnusable(self.path, reason)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")

    def _check(self, connection: sqlite3.Connection) -> str:
        """Why the file cannot be used; a new one is made."""
        mark, form = self._pragma("application_id"), self._pragma("user_version")
        if not mark and not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            for words in _TABLES:
                connection.execute(words)
            connection.execute("INSERT INTO about VALUES (?)", (self._namespace,))
            connection.execute(f"PRAGMA application_id = {_APPLICATION}")
            connection.execute(f"PRAGMA user_version = {_FORMAT}")
        elif mark != _APPLICATION:
            return "it is a database of something else"
        elif form > _FORMAT:
            return f"it is of format {form}, this release reads up to {_FORMAT}"
        (namespace,) = connection.execute("SELECT namespace FROM about").fetchone()
        same = namespace == self._namespace
        return "" if same else f"it belongs to the namespace {namespace!r}, not to {self._namespace!r}"

    def _pragma(self, name: str) -> int:
        return int(self._connected().execute(f"PRAGMA {name}").fetchone()[0])

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            raise ProducerClosed
        return self._connection


class Disk:
    """The file behind a thread of its own, so that no event loop waits for a disk."""

    def __init__(self, file: OutboxFile) -> None:
        self._file = file
        self._thread = ThreadPoolExecutor(1, "laneway outbox")
        self._turn = asyncio.Lock()
        self._changes: list[Change] = []
        self._next: asyncio.Task[None] | None = None

    async def open(self) -> list[Row]:
        """See `OutboxFile.open`."""
        return await self._do(self._file.open)

    async def read(self, job_ids: Sequence[JobId]) -> dict[JobId, bytes]:
        """See `OutboxFile.read`. Raises `OutboxUnusable`, as `write` does."""
        return await self._do(self._file.read, job_ids)

    async def write(self, changes: Sequence[Change]) -> None:
        """Make changes; returns when they are on the disk. All who write while it is busy share its next turn."""
        await asyncio.shield(self.soon(changes))

    def soon(self, changes: Sequence[Change]) -> asyncio.Task[None]:
        """The same, without waiting for it."""
        self._changes += changes
        if self._next is None:
            self._next = asyncio.create_task(self._flush(), name="laneway outbox disk")
            self._next.add_done_callback(_retrieve)
        return self._next

    async def close(self) -> None:
        """Write what is left, give the file up and end the thread."""
        if self._next is not None:
            await asyncio.gather(self._next, return_exceptions=True)
        async with self._turn:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._file.close)
        self._thread.shutdown()

    async def _flush(self) -> None:
        async with self._turn:
            changes, self._changes, self._next = self._changes, [], None
            await self._do(self._file.write, changes)

    async def _do(self, work: Callable[..., _T], *words: Any) -> _T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work, *words)
        except sqlite3.OperationalError as error:
            busy = "locked" in str(error)
            raise OutboxUnusable(
                self._file.path, "another producer has it open" if busy else str(error)
            ) from None
        except sqlite3.Error as error:
            raise OutboxUnusable(self._file.path, str(error)) from None


def _retrieve(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()  # whoever wrote may be gone

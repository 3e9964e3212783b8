"""The file of an outbox: what was written is there for the next producer, and nobody else's file is touched."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from laneway.producer import OutboxUnusable
from laneway.producer.outbox_file import Change, Disk, OutboxFile, Row, cancelled, dropped, kept
from laneway.schemas.ids import JobId


def row(number: int, data: bytes, *, flag: bool = False) -> Row:
    """What the file says of job `number`."""
    return Row(JobId(f"job-{number}"), f"place-{number}", number, len(data), flag)


@contextmanager
def opened(path: Path, namespace: str = "n") -> Iterator[tuple[OutboxFile, list[Row]]]:
    """The file in hand, and what was in it."""
    file = OutboxFile(str(path), namespace)
    rows = file.open()
    try:
        yield file, rows
    finally:
        file.close()


def test_what_was_written_is_there_for_the_next_producer(tmp_path: Path) -> None:
    """Jobs with their bodies, and which of them are not wanted any more."""
    path = tmp_path / "outbox.db"
    with opened(path) as (file, rows):
        assert rows == []
        file.write([kept(row(1, b"one"), b"one"), kept(row(2, b"two!"), b"two!"), kept(row(3, b""), b"")])
        file.write([cancelled(JobId("job-2")), dropped(JobId("job-3"))])
    with opened(path) as (file, rows):
        assert sorted(rows, key=lambda one: one.id) == [row(1, b"one"), row(2, b"two!", flag=True)]
        assert file.read([JobId("job-1"), JobId("job-3")]) == {"job-1": b"one"}


def test_it_is_on_the_disk_when_a_call_returns(tmp_path: Path) -> None:
    """Each commit is synced: a loss of power takes nothing that was accepted."""
    with opened(tmp_path / "outbox.db") as (file, _):
        assert file._connection is not None
        assert file._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert file._connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL


def test_changes_are_made_together_or_not_at_all(tmp_path: Path) -> None:
    """A disk that refuses half-way leaves the file as it was."""
    path = tmp_path / "outbox.db"
    with opened(path) as (file, _):
        broken: Change = ("INSERT INTO nowhere VALUES (?)", (1,))
        with pytest.raises(sqlite3.OperationalError):
            file.write([kept(row(1, b"one"), b"one"), broken])
        file.write([kept(row(2, b"two"), b"two")])
    with opened(path) as (_, rows):
        assert rows == [row(2, b"two")]


def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    """Prompts lie in it as they are."""
    path = tmp_path / "outbox.db"
    with opened(path) as (file, _):
        file.write([kept(row(1, b"one"), b"one")])
        modes = {name: stat.S_IMODE(os.stat(tmp_path / name).st_mode) for name in os.listdir(tmp_path)}
        assert set(modes.values()) == {0o600}, modes


def something_else(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE customers (name TEXT)")
    connection.close()


def another_namespace(path: Path) -> None:
    with opened(path, "blue"):
        pass


def newer(path: Path) -> None:
    with opened(path):
        pass
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 9")
    connection.close()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.write_text("a letter " * 100), "file is not a database"),
        (something_else, "it is a database of something else"),
        (another_namespace, "it belongs to the namespace 'blue', not to 'n'"),
        (newer, "it is of format 9, this release reads up to 1"),
        (lambda path: path.mkdir(), "is a directory"),
    ],
)
async def test_another_file_is_refused_and_left_as_it_is(tmp_path: Path, make: object, message: str) -> None:
    """One sentence with the path and what is wrong."""
    path = tmp_path / "outbox.db"
    assert callable(make)
    make(path)
    before = path.read_bytes() if path.is_file() else b""
    disk = Disk(OutboxFile(str(path), "n"))
    with pytest.raises(OutboxUnusable) as caught:
        await disk.open()
    assert str(caught.value).endswith(f": {message}")
    assert "outbox.db" in str(caught.value)
    await disk.close()
    assert (path.read_bytes() if path.is_file() else b"") == before


async def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    """It is not made: a typing mistake would be a second outbox."""
    disk = Disk(OutboxFile(str(tmp_path / "missing" / "outbox.db"), "n"))
    with pytest.raises(OutboxUnusable, match="no such file or directory"):
        await disk.open()
    await disk.close()


async def test_one_producer_at_a_time_holds_it(tmp_path: Path) -> None:
    """In this process or in another; and when that is killed, the file is free."""
    path = tmp_path / "outbox.db"
    hold = f"""
import sys
from laneway.producer.outbox_file import OutboxFile
OutboxFile({str(path)!r}, "n").open()
print("held", flush=True)
sys.stdin.read()
"""
    other = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdout is not None
    assert other.stdin is not None
    assert (await asyncio.to_thread(other.stdout.readline)).strip() == b"held"
    disk = Disk(OutboxFile(str(path), "n"))
    with pytest.raises(OutboxUnusable, match="another producer has it open"):
        await disk.open()
    other.kill()
    other.wait()
    other.stdout.close()
    other.stdin.close()
    assert await disk.open() == []
    second = Disk(OutboxFile(str(path), "n"))
    with pytest.raises(OutboxUnusable, match="another producer has it open"):
        await second.open()
    await second.close()
    await disk.close()


async def test_those_who_write_while_the_disk_is_busy_share_its_next_turn(tmp_path: Path) -> None:
    """A thousand submits at a time cost a few syncs, not a thousand."""
    file = OutboxFile(str(tmp_path / "outbox.db"), "n")
    disk = Disk(file)
    await disk.open()
    turns: list[int] = []
    write = file.write
    file.write = lambda changes: (turns.append(len(changes)), write(changes))[1]  # type: ignore[method-assign, func-returns-value]
    await asyncio.gather(*(disk.write([kept(row(number, b"x"), b"x")]) for number in range(1000)))
    assert sum(turns) == 1000
    assert len(turns) <= 3
    cut = asyncio.create_task(disk.write([kept(row(1000, b"x"), b"x")]))
    await asyncio.sleep(0)
    cut.cancel()  # whoever goes away takes nobody's change along
    await disk.write([kept(row(1001, b"x"), b"x")])
    await disk.close()
    with opened(tmp_path / "outbox.db") as (_, rows):
        assert len(rows) == 1002


class Life(RuleBasedStateMachine):
    """Any order of writing, opening anew and dying: the file holds what the calls that returned have said."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "outbox.db"
        self.file = OutboxFile(str(self.path), "n")
        self.file.open()
        self.model: dict[JobId, tuple[Row, bytes]] = {}

    @rule(number=st.integers(0, 5), data=st.binary(max_size=20))
    def keep(self, number: int, data: bytes) -> None:
        self.file.write([kept(row(number, data), data)])
        self.model[row(number, data).id] = (row(number, data), data)

    @rule(number=st.integers(0, 5))
    def cancel(self, number: int) -> None:
        job_id = row(number, b"").id
        self.file.write([cancelled(job_id)])
        if job_id in self.model:
            data = self.model[job_id][1]
            self.model[job_id] = (row(number, data, flag=True), data)

    @rule(number=st.integers(0, 5))
    def drop(self, number: int) -> None:
        self.file.write([dropped(row(number, b"").id)])
        self.model.pop(row(number, b"").id, None)

    @rule(number=st.integers(0, 5))
    def fail(self, number: int) -> None:
        with pytest.raises(sqlite3.Error):
            self.file.write([dropped(row(number, b"").id), ("nonsense", ())])

    @precondition(lambda self: self.model)
    @rule()
    def reopen(self) -> None:
        self.file.close()
        self.file = OutboxFile(str(self.path), "n")
        rows = self.file.open()
        assert sorted(rows, key=lambda one: one.id) == sorted(
            (one for one, _ in self.model.values()), key=lambda one: one.id
        )

    @invariant()
    def bodies(self) -> None:
        ids = [row(number, b"").id for number in range(6)]
        assert self.file.read(ids) == {job_id: data for job_id, (_, data) in self.model.items()}

    def teardown(self) -> None:
        self.file.close()
        self.folder.cleanup()


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)

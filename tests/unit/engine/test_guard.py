"""Nothing of an engine outlives its worker. Shown with processes that do nothing; `tests/faults` does it with vLLM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.support.wait import wait_until

from laneway.worker.engine.guard import Guard
from laneway.worker.engine.guardian import marked

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are found through /proc")

SLEEPER = "import time; time.sleep(600)"
WORKER = f"""
import subprocess, sys, time
from laneway.worker.engine.guard import Guard
guard = Guard()
guard.start()
with guard.marking():
    subprocess.Popen([sys.executable, "-c", {SLEEPER!r}], start_new_session=True)
print(guard.mark, flush=True)
time.sleep(600)
"""


@pytest.fixture
def guard() -> Iterator[Guard]:
    """A guard that is stopped in the end."""
    guard = Guard()
    guard.start()
    yield guard
    guard.kill()
    guard.stop()


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", SLEEPER])


async def test_only_marked_processes_are_killed(guard: Guard) -> None:
    """Processes started inside `marking` are the engine's, others are not."""
    with guard.marking():
        engine = sleeper()
    other = sleeper()
    try:
        await wait_until(lambda: guard.processes() == [engine.pid], "the engine's start")
        assert guard.kill() == []
        assert engine.wait(5) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_the_mark_does_not_stay_in_the_environment(guard: Guard) -> None:
    """What is started later is not taken for a part of the engine."""
    before = dict(os.environ)
    with guard.marking():
        assert os.environ != before
    assert os.environ == before


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.case("F69")
async def test_the_engine_ends_with_its_worker(how: signal.Signals) -> None:
    """However the worker ends, even by `kill -9`, its engine's processes are gone a moment later."""
    with subprocess.Popen([sys.executable, "-c", WORKER], stdout=subprocess.PIPE) as worker:  # noqa: ASYNC220
        assert worker.stdout is not None
        mark = worker.stdout.readline().decode().strip()
        await wait_until(lambda: len(marked(mark)) == 1, "the engine's start")
        worker.send_signal(how)
    await wait_until(lambda: not marked(mark), "the engine's end")

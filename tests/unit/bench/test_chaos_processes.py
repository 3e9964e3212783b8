"""Chaos with real engines looks for processes that outlive their worker."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.wait import wait_until

from laneway.worker.bench.chaos.real import Process, _below, _stat


async def test_a_process_is_seen_until_it_has_ended() -> None:
    """Also when nobody has asked for its exit code yet, or another has its number by then."""
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child:  # noqa: ASYNC220 - a fork is short
        assert child.pid in _below(os.getpid())
        stat = _stat(child.pid)
        assert stat is not None
        process = Process(child.pid, stat[1])
        assert process.lives
        assert not Process(child.pid, "another beginning").lives
        child.kill()
        await wait_until(lambda: not process.lives, "its end")
    assert _stat(child.pid) is None


PARENT = """
import signal, subprocess, sys
from laneway.worker.child import dying_with_us
word = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
child = subprocess.Popen(dying_with_us(word, signal.SIGKILL), stdout=subprocess.PIPE)
child.stdout.readline()
child.send_signal(signal.SIGSTOP)
print(child.pid, flush=True)
input()
"""


async def test_a_frozen_worker_does_not_outlive_whoever_froze_it() -> None:
    """It cannot hear SIGTERM."""
    command, pipe = [sys.executable, "-c", PARENT], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as parent:  # noqa: ASYNC220 - a fork is short
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert _stat(pid) is not None
        parent.kill()
        await wait_until(lambda: _stat(pid) is None, "its end")

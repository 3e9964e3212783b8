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

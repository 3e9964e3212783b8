"""The last resort."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

from tests.support.wait import wait_until

from laneway.worker.watchdog import Watchdog

BLOCKED = """
import asyncio, subprocess, sys, time
from laneway.worker.watchdog import Watchdog

async def main():
    child = subprocess.Popen(["sleep", "600"])
    print(child.pid, flush=True)
    Watchdog().set(0.3)
    time.sleep(600)  # the loop is blocked: nothing on it will ever run again

asyncio.run(main())
"""


async def test_a_process_whose_end_takes_too_long_ends_by_force_and_leaves_no_child() -> None:
    """Even with a blocked event loop: its own exit code, at once, and nothing stays on the GPU."""
    command = [sys.executable, "-c", BLOCKED]
    ended = await asyncio.to_thread(subprocess.run, command, stdout=subprocess.PIPE, timeout=30, check=False)
    assert ended.returncode == Watchdog.EXIT
    child = int(ended.stdout)
    await wait_until(lambda: _is_gone(child), "the end of the child")


def _is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_watchdog_that_is_called_off_harms_nobody() -> None:
    """An end in good time."""
    with Watchdog() as watchdog:
        watchdog.set(0.05)
        watchdog.set(60)
        time.sleep(0.1)

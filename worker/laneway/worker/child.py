"""Processes that end with the process that started them, even when that one is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

# Runs first, in the child: asks Linux for a signal when its parent ends, then becomes the program.
_LAUNCHER = """
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None, use_errno=True).prctl(1, int(sys.argv[2]))
    if os.getppid() != int(sys.argv[1]):
        sys.exit(1)
os.execv(sys.argv[3], sys.argv[3:])
"""


def dying_with_us(command: Sequence[str], signum: signal.Signals = signal.SIGTERM) -> list[str]:
    """`command`, whose first word is a path, such that Linux sends its process `signum` when this process ends. One that
    may be frozen by then hears SIGKILL alone.

    Start it from a thread that lives as long as the child should: Linux looks at the thread.
    """
    return [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), str(int(signum)), *command]


def end_process(process: subprocess.Popen[bytes], patience_s: float) -> None:
    """SIGTERM, and SIGKILL when the process is still there after `patience_s`. Blocks until it is gone."""
    process.terminate()
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

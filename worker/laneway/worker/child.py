"""Processes that end with the process that started them, even when that one is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

# Runs first, in the child: asks Linux for SIGTERM when its parent ends, then becomes the program.
_LAUNCHER = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGTERM)
    if os.getppid() != int(sys.argv[1]):
        sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


def dying_with_us(command: Sequence[str]) -> list[str]:
    """`command`, whose first word is a path, such that Linux sends its process SIGTERM when this process ends.

    Start it from a thread that lives as long as the child should: Linux looks at the thread.
    """
    return [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *command]


def end_process(process: subprocess.Popen[bytes], patience_s: float) -> None:
    """SIGTERM, and SIGKILL when the process is still there after `patience_s`. Blocks until it is gone."""
    process.terminate()
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

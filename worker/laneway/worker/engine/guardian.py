"""Ends what is left of an engine when its worker is gone, `kill -9` included. Needs nothing but Python itself.

    python -I -S guardian.py WORKER_PID MARK

vLLM's engine is a process of its own that does not notice when its parent vanishes: it would keep the GPU. Every
process of the engine carries a mark in its environment, and this one waits for the worker's end to kill all of them.
"""

import os
import select
import signal
import sys
import time
from contextlib import suppress

VARIABLE = "LANEWAY_ENGINE_MARK"
_TRACKER = b"multiprocessing.resource_tracker"  # unlinks the shared memory of the others, then ends by itself
_POLL_S = 0.1


def marked(mark: str) -> list[int]:
    """Processes that carry `mark`, without those that have ended and only wait to be reaped."""
    needle = f"{VARIABLE}={mark}".encode()
    found = []
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        with suppress(OSError):
            with open(f"/proc/{name}/environ", "rb") as file:
                if needle not in file.read().split(b"\0"):
                    continue
            with open(f"/proc/{name}/cmdline", "rb") as file:
                if _TRACKER not in file.read():
                    found.append(int(name))
    return found


def kill_marked(mark: str, patience_s: float = 5.0) -> list[int]:
    """Kill every process that carries `mark`; those that are still there after `patience_s`."""
    give_up = time.monotonic() + patience_s
    while (left := marked(mark)) and time.monotonic() < give_up:
        for pid in left:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S / 5)
    return left


def _wait_for_end(pid: int) -> None:
    with suppress(OSError, AttributeError):
        select.select([os.pidfd_open(pid)], [], [])
        return
    while os.getppid() == pid:  # an old kernel
        time.sleep(_POLL_S)


def main() -> None:
    """Wait for the worker's end, then kill. Twice: a process may have been on its way."""
    worker, mark = int(sys.argv[1]), sys.argv[2]
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if os.getppid() == worker:
        _wait_for_end(worker)
    kill_marked(mark)
    time.sleep(_POLL_S)
    kill_marked(mark)


if __name__ == "__main__":
    main()

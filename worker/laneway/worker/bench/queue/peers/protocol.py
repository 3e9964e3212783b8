"""What the driver and a peer say to each other. Standard library only: peers run in environments of their own.

A peer is started as `python -m ...peers.NAME worker|producer URL JOBS BATCH`. Both roles print `ready` when connected. The
producer then waits for a line, submits, and prints when it began; the worker prints when the last job was settled.
Times are the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

PROMPT = "Nothing is done with this text. " * 8
"""256 bytes: what every job carries."""


@dataclass
class Round:
    """One run: what to do, and the signals of its progress."""

    url: str
    jobs: int
    batch: int
    settled: int = 0
    finished: asyncio.Event = field(default_factory=asyncio.Event)

    def settle(self) -> None:
        """The worker is through with a job."""
        self.settled += 1
        if self.settled == self.jobs:
            _tell({"end": time.monotonic()})
            self.finished.set()

    def ready(self) -> None:
        """The worker takes jobs."""
        _tell({"ready": True})

    async def go(self) -> None:
        """The producer is connected: wait for the word, then begin."""
        _tell({"ready": True})
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        _tell({"begin": time.monotonic()})

    def chunks(self) -> Iterator[int]:
        """Sizes of the producer's batches."""
        for begin in range(0, self.jobs, self.batch):
            yield min(self.batch, self.jobs - begin)


Role = Callable[[Round], Awaitable[None]]


def main(worker: Role, producer: Role) -> None:
    """Play the role that the command line names, on uvloop, silently."""
    import uvloop

    logging.disable(logging.CRITICAL)
    name, url, jobs, batch = sys.argv[1:]
    role = worker if name == "worker" else producer

    async def play() -> None:
        await role(Round(url, int(jobs), int(batch)))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(play())


def _tell(said: dict[str, object]) -> None:
    print(json.dumps(said), flush=True)

"""The subcommands that the worker's package adds to `laneway`. Their heavy imports wait until one of them runs."""

from __future__ import annotations

from laneway.schemas.command import Command
from laneway.worker.bench import commands as bench
from laneway.worker.cli import demo, doctor, redis, top, worker

COMMANDS: tuple[Command, ...] = (
    bench.COMMAND,
    demo.COMMAND,
    doctor.COMMAND,
    redis.COMMAND,
    top.COMMAND,
    worker.COMMAND,
)

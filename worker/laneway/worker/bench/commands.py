"""`laneway bench`: one subcommand for each thing that can be measured or tried."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from laneway.schemas.command import Command
from laneway.worker.bench import lease, overhead
from laneway.worker.bench.chaos import command as chaos
from laneway.worker.bench.mixed import command as mixed
from laneway.worker.bench.queue import command as queue
from laneway.worker.bench.sim import command as sim

BENCHES: tuple[Command, ...] = (
    chaos.COMMAND,
    lease.COMMAND,
    mixed.COMMAND,
    overhead.COMMAND,
    queue.COMMAND,
    sim.COMMAND,
)


def configure(parser: ArgumentParser) -> None:
    """A subcommand for each of `BENCHES`."""
    names = parser.add_subparsers(title="benches", metavar="BENCH", required=True)
    for bench in BENCHES:
        own = names.add_parser(bench.name, help=bench.help, description=bench.help)
        bench.configure(own)
        own.set_defaults(_bench=bench)


def run(args: Namespace) -> int:
    """Run the one that was asked for."""
    chosen: Command = args._bench  # noqa: SLF001 - argparse has no other place for it
    return chosen.run(args)


COMMAND = Command("bench", "measure Laneway, and try to break it", configure, run)

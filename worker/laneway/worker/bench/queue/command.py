"""`laneway bench queue`: round trips through Redis, ours and others'."""

from __future__ import annotations

import asyncio
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

import msgspec

from laneway.schemas.command import Command
from laneway.worker.bench.queue.race import Figure, Peer, find_peers, race, some_server, versions
from laneway.worker.queue.admin import server_facts
from laneway.worker.table import table

BATCHES = (1, 32)
SHARE_AT_ONE = 4
"""Jobs of a round at batch 1 are this many times fewer: they take longer."""


def configure(parser: ArgumentParser) -> None:
    """Arguments of `laneway bench queue`."""
    parser.add_argument(
        "--jobs", type=int, default=4000, metavar="N", help="jobs of a round at batch 32 (4000)"
    )
    parser.add_argument(
        "--rounds", type=int, default=5, metavar="N", help="rounds, of which the median counts (5)"
    )
    parser.add_argument("--redis-url", metavar="URL", help="an EMPTY database; default: an embedded server")
    parser.add_argument("--only", action="append", metavar="NAME", help="run these queues only")
    parser.add_argument(
        "--environments",
        type=Path,
        default=Path(".venv-bench"),
        metavar="DIR",
        help="made by deploy/setup-bench.sh",
    )
    parser.add_argument("--json", action="store_true", help="one JSON value instead of tables")


def run(args: Namespace) -> int:
    """Run the race and print the figures."""
    peers, missing = find_peers(args.environments)
    peers = [peer for peer in peers if not args.only or peer.name in args.only]
    for name in missing:
        print(f"{name} is left out: run deploy/setup-bench.sh", file=sys.stderr)
    jobs = {batch: max(1, args.jobs // (SHARE_AT_ONE if batch == 1 else 1)) for batch in BATCHES}
    with some_server(args.redis_url) as url:
        figures = asyncio.run(race(url, peers, jobs, args.rounds, _tell))
        told = asyncio.run(_about(url, peers))
    if args.json:
        rows = [{**msgspec.to_builtins(figure), "median": figure.median} for figure in figures]
        print(msgspec.json.encode({"about": told, "figures": rows}).decode())
    else:
        print("\n".join([render(figures), "", *told]))
    return 0


def render(figures: list[Figure]) -> str:
    """One row per batch and queue: the median, the spread, and how many times slower it is than ours."""
    ours = {figure.batch: figure.median for figure in figures if figure.peer == "laneway"}
    rows = [
        (
            figure.batch,
            figure.peer,
            f"{figure.median:,.0f}",
            f"{min(figure.rates):,.0f} to {max(figure.rates):,.0f}",
            f"{ours[figure.batch] / figure.median:.2f}" if figure.batch in ours else "-",
        )
        for figure in figures
    ]
    return table(("batch", "queue", "jobs/s", "rounds", "laneway is x"), rows, right=(0, 2, 4))


async def _about(url: str, peers: list[Peer]) -> list[str]:
    facts = await server_facts(url)
    server = (
        f"{facts.kind} {'.'.join(map(str, facts.version))}, append-only file {'on' if facts.aof else 'off'}"
    )
    return [server, *[await versions(peer) for peer in peers]]


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


COMMAND = Command("queue", "round trips per second, beside arq, taskiq-redis and saq", configure, run)

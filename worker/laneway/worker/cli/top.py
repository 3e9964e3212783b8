"""`laneway top`: what the workers do now, and why the first job of each lane waits."""

from __future__ import annotations

import asyncio
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from laneway.producer import Producer
from laneway.schemas.cards import WorkerCard
from laneway.schemas.command import Command
from laneway.schemas.ids import new_worker_id
from laneway.schemas.job import Bucket, SloClass
from laneway.worker.ports import Depth
from laneway.worker.queue.redis_queue import QueueOptions, RedisQueue

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

INTERVAL_S = 1.0
"""Pause between two looks; workers tell of themselves every two seconds."""


class LaneFacts(Struct, frozen=True, kw_only=True):
    """A lane of one model, all partitions together."""

    model: str
    lane: str
    waiting: int
    pending: int
    """In hand of workers."""
    oldest_ms: int
    """Age of the job that waits longest; 0: none waits."""
    why: tuple[str, ...]
    """Why the first job of it waits, one of each reason that a worker gives."""


class Frame(Struct, frozen=True, kw_only=True):
    """One look."""

    lanes: tuple[LaneFacts, ...]
    workers: tuple[WorkerCard, ...]


async def look(producer: Producer) -> Frame:
    """What the server says now, of all models that have a living worker. Raises `QueueUnavailable`."""
    settings, cards = producer.settings, await producer.workers()
    lanes: list[LaneFacts] = []
    for model in sorted({card.model for card in cards}):
        crew = [card for card in cards if card.model == model]
        partitions = max(card.partitions for card in crew)
        options = QueueOptions(url=settings.redis_url, namespace=settings.namespace, partitions=partitions)
        queue = RedisQueue(model, new_worker_id("top"), options)
        try:
            lanes += _lanes(model, await queue.depths(), crew)
        finally:
            await queue.close()
    return Frame(lanes=tuple(lanes), workers=tuple(cards))


def _lanes(model: str, depths: list[Depth], crew: list[WorkerCard]) -> Iterator[LaneFacts]:
    now_ms = round(time.time() * 1000)
    by_lane: dict[tuple[SloClass, Bucket], list[Depth]] = {}
    for depth in depths:
        by_lane.setdefault((depth.lane.slo, depth.lane.bucket), []).append(depth)
    for (slo, bucket), parts in by_lane.items():
        name = f"{slo.value}.{bucket.value}"
        oldest = min((part.oldest_ms for part in parts if part.oldest_ms), default=now_ms)
        yield LaneFacts(
            model=model,
            lane=name,
            waiting=sum(part.waiting for part in parts),
            pending=sum(part.pending for part in parts),
            oldest_ms=max(0, now_ms - oldest),
            why=tuple(sorted({card.waits[name] for card in crew if name in card.waits})),
        )


# --- on the screen --------------------------------------------------------------


def render(frame: Frame) -> Group:
    """The frame as two tables."""
    from rich.console import Group

    return Group(_lane_table(frame.lanes), _worker_table(frame.workers))


def _lane_table(lanes: Sequence[LaneFacts]) -> Table:
    table = _table("model", "lane", waiting="", in_hand="", oldest="")
    table.add_column("why its first job waits", overflow="fold")
    for lane in lanes:
        age = f"{lane.oldest_ms / 1000:.1f} s" if lane.waiting else ""
        table.add_row(lane.model, lane.lane, str(lane.waiting), str(lane.pending), age, ", ".join(lane.why))
    return table


def _worker_table(cards: Sequence[WorkerCard]) -> Table:
    table = _table("worker", "phase", seats="", gate="", kv="", budget="", plans_s="", model_error="")
    for card in cards:
        table.add_row(
            card.id,
            card.phase,
            f"{card.seats - card.seats_free}/{card.seats}",
            str(card.gate),
            f"{card.kv_usage:.0%}",
            f"{card.budget} tokens",
            f"{card.plans_s:.1f}",
            f"{card.cost_error:.0%}",
        )
    return table


def _table(*words: str, **numbers: str) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD)
    for name in words:
        table.add_column(name)
    for name in numbers:
        table.add_column(name.replace("_s", "/s").replace("_", " "), justify="right")
    return table


# --- the command ----------------------------------------------------------------


def configure(parser: ArgumentParser) -> None:
    """Arguments of `laneway top`."""
    parser.add_argument(
        "--redis-url", metavar="URL", help="default: LANEWAY_REDIS_URL, else redis://localhost:6379/0"
    )
    parser.add_argument("--namespace", metavar="NAME", help="default: LANEWAY_NAMESPACE, else laneway")
    parser.add_argument("--json", action="store_true", help="one look as one JSON value for programs")
    parser.add_argument("--once", action="store_true", help="one look; so it is when this is no terminal")


def run(options: Namespace) -> int:
    """Show frame after frame until interrupted."""
    asyncio.run(_show(options))
    return 0


async def _show(options: Namespace) -> None:
    async with Producer(options.redis_url, namespace=options.namespace, listen=False) as producer:
        if options.json:
            print(msgspec.json.encode(await look(producer)).decode(), flush=True)
            return
        from rich.console import Console
        from rich.live import Live

        console = Console(highlight=False)
        if options.once or not sys.stdout.isatty():
            console.print(render(await look(producer)))
            return
        with Live(console=console, auto_refresh=False, screen=True) as live:
            while True:
                live.update(render(await look(producer)), refresh=True)
                await asyncio.sleep(INTERVAL_S)


COMMAND = Command("top", "what the workers do now, and why each lane waits", configure, run)

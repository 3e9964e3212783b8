"""`laneway bench lease`: what it costs to hold jobs, how soon a killed worker's jobs run elsewhere, and how soon a cancel
frees the engine.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import TypeVar

import msgspec
from msgspec import Struct

from laneway.producer import JobFields, Producer
from laneway.schemas.cards import ModelCard
from laneway.schemas.command import Command
from laneway.schemas.ids import new_worker_id
from laneway.schemas.keys import lanes
from laneway.worker.bench.chaos.audit import recoveries
from laneway.worker.bench.chaos.fleet import FAKE, Fleet, Worker
from laneway.worker.bench.chaos.server import ChaosServer, find_binary
from laneway.worker.engine.fake_engine import FakeEngine, FakeEngineSettings
from laneway.worker.lease import CHUNK
from laneway.worker.policy.admission import ClaimPlan, Stage
from laneway.worker.ports import Claim
from laneway.worker.queue.redis_queue import QueueOptions, RedisQueue
from laneway.worker.service import Service
from laneway.worker.settings import WorkerSettings
from laneway.worker.table import table
from laneway.worker.telemetry import Telemetry

T = TypeVar("T")

MODEL = "demo"
IN_HAND = 256
RENEWALS = 50
STEP_S = 0.02
"""Length of a step of the fake engine."""
LONG = {"max_tokens": 4000, "ignore_eos": True}
_POLL_S = 0.001


class Figures(Struct, frozen=True, kw_only=True):
    """What was measured."""

    renewal_ms: float
    """Median time of one renewal of `IN_HAND` jobs, from call to reply, in chunks as a worker does it."""
    renewal_share: float
    """That, once every third of a lease of 15 s: share of a worker's time spent waiting for renewals."""
    lease_s: float
    kill_s: tuple[float, ...]
    """Seconds from `kill -9` of a worker to its job running on another, for each trial."""
    cancel_s: tuple[float, ...]
    """Seconds from `Producer.cancel` to an engine without the job, for each trial. Steps take `STEP_S`."""


async def measure(binary: Path, lease_s: float, trials: int) -> Figures:
    """Measure on a server of its own, with an append-only file written at every step."""
    with tempfile.TemporaryDirectory(prefix="laneway-lease-") as name:
        server = ChaosServer(binary, Path(name) / "server")
        server.launch()
        try:
            await asyncio.to_thread(server.wait_until_up)
            renewal = await _renewal_s(server.url)
            cancels = await _cancels_s(server.url, trials)
            kills = await _kills_s(server.url, Path(name), lease_s, trials)
        finally:
            server.stop()
    return Figures(
        renewal_ms=round(1000 * renewal, 3),
        renewal_share=renewal / (15.0 / 3),
        lease_s=lease_s,
        kill_s=tuple(round(seconds, 3) for seconds in kills),
        cancel_s=tuple(round(seconds, 3) for seconds in cancels),
    )


# --- holding ------------------------------------------------------------------


async def _renewal_s(url: str) -> float:
    queue = RedisQueue(MODEL, new_worker_id("lease"), QueueOptions(url=url, namespace="held"))
    await queue.open(ModelCard(name=MODEL))
    try:
        async with Producer(url, namespace="held", check_model=False) as producer:
            fields = [JobFields(model=MODEL, prompt=f"job {number}") for number in range(IN_HAND)]
            async for _ in producer.submit_many(fields):
                pass
        plan = ClaimPlan(IN_HAND, (Stage(lanes(0), IN_HAND),))
        held = [claim for claim in await queue.claim(plan) if isinstance(claim, Claim)]
        seconds = []
        for _ in range(RENEWALS):
            begin = time.perf_counter()
            for first in range(0, len(held), CHUNK):
                await queue.renew(held[first : first + CHUNK])
            seconds.append(time.perf_counter() - begin)
        return median(seconds)
    finally:
        await queue.close()


# --- a worker that is killed --------------------------------------------------


async def _kills_s(url: str, folder: Path, lease_s: float, trials: int) -> list[float]:
    fleet = Fleet([url, url], folder, {**FAKE, "lease-s": lease_s})
    watch = asyncio.create_task(fleet.watch())
    try:
        await fleet.start()
        async with Producer(url, check_model=False) as producer:
            return [await _kill_s(fleet, producer, lease_s) for _ in range(trials)]
    finally:
        watch.cancel()
        await asyncio.to_thread(fleet.stop)


async def _kill_s(fleet: Fleet, producer: Producer, lease_s: float) -> float:
    job = (await producer.submit(model=MODEL, prompt="Tell me more.", sampling=LONG)).id

    def runs_on() -> Worker | None:
        names = {line.process for line in fleet.lines() if line.event == "job.started" and line.job_id == job}
        return next((worker for worker in fleet.workers if worker.process_name in names), None)

    def back() -> float | None:
        found = recoveries(fleet.lines(), fleet.silences)
        return next((one.seconds for one in found if one.job_id == job), None)

    worker = await _until(runs_on)
    # At another moment between two renewals each time.
    await asyncio.sleep(lease_s * 0.2 * (1 + len(fleet.silences) % 5))
    fleet.kill(worker.number)
    seconds = await _until(back)
    await producer.cancel(job)
    await producer.result(job)
    await fleet.wait_until_ready()
    return seconds


# --- a job that is cancelled --------------------------------------------------


async def _cancels_s(url: str, trials: int) -> list[float]:
    async with _serving(url) as engine, Producer(url, namespace="cancel", check_model=False) as producer:
        return [await _cancel_s(engine, producer) for _ in range(trials)]


async def _cancel_s(engine: FakeEngine, producer: Producer) -> float:
    def runs() -> bool | None:
        return engine.stats().running > 0 or None

    def free() -> bool | None:
        return engine.stats().running == 0 or None

    job = (await producer.submit(model=MODEL, prompt="Tell me more.", sampling=LONG)).id
    await _until(runs)
    begin = time.perf_counter()
    cancel = asyncio.create_task(producer.cancel(job))
    await _until(free)
    seconds = time.perf_counter() - begin
    await cancel
    await producer.result(job)
    return seconds


@asynccontextmanager
async def _serving(url: str) -> AsyncIterator[FakeEngine]:
    engine = FakeEngine(FakeEngineSettings(base_s=STEP_S))
    worker = new_worker_id("cancel")
    service = Service(
        settings=WorkerSettings(engine="fake"),
        queue=RedisQueue(MODEL, worker, QueueOptions(url=url, namespace="cancel")),
        engine=engine,
        adapters={},
        worker=worker,
        telemetry=Telemetry(),
    )
    task = asyncio.create_task(service.run())
    try:
        yield engine
    finally:
        service.drain()
        await task


async def _until(look: Callable[[], T | None]) -> T:
    while (found := look()) is None:  # noqa: ASYNC110 - other processes set no event here
        await asyncio.sleep(_POLL_S)
    return found


# --- the command --------------------------------------------------------------


def configure(parser: ArgumentParser) -> None:
    """Arguments of `laneway bench lease`."""
    parser.add_argument(
        "--lease-s", type=float, default=5.0, metavar="S", help="lease of the killed workers (5)"
    )
    parser.add_argument("--trials", type=int, default=5, metavar="N", help="kills, and cancels (5)")
    parser.add_argument(
        "--server", choices=("valkey", "redis"), default="valkey", help="which server (valkey)"
    )
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of a table")


def run(args: Namespace) -> int:
    """Measure and print. Returns 0."""
    figures = asyncio.run(measure(find_binary(args.server), args.lease_s, max(1, args.trials)))
    print(msgspec.json.encode(figures).decode() if args.json else render(figures))
    return 0


def render(figures: Figures) -> str:
    """A row per figure."""
    rows = [
        (
            f"renewal of {IN_HAND} jobs",
            f"{figures.renewal_ms:.1f} ms",
            f"median of {RENEWALS}; {100 * figures.renewal_share:.2f}% of the time, at a lease of 15 s",
        ),
        ("kill -9 to running", _spread(figures.kill_s), f"at a lease of {figures.lease_s:g} s"),
        ("cancel to free", _spread(figures.cancel_s), f"at steps of {STEP_S:g} s"),
    ]
    return table(("figure", "value", ""), rows)


def _spread(seconds: Sequence[float]) -> str:
    return f"{median(seconds):.3f} s ({min(seconds):.3f} to {max(seconds):.3f})"


COMMAND = Command(
    "lease", "what holding jobs costs, and how soon a loss and a cancel are noticed", configure, run
)

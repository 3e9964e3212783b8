"""`laneway bench overhead`: what a worker and its queue add to an engine that is called directly.

One engine serves both ways in turns: calls of `Engine.generate`, a thin layer over vLLM's `AsyncLLM.generate`, and jobs
that a producer submits through a real server to a whole worker. Producer and worker share a process and its event loop.
"""

from __future__ import annotations

import asyncio
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from statistics import median
from typing import Any, cast

import msgspec
import redis.asyncio
from msgspec import Struct

from laneway.producer import JobFields, Producer
from laneway.schemas.build import build_job
from laneway.schemas.command import Command
from laneway.schemas.events import Tokens
from laneway.schemas.ids import new_job_id, new_worker_id
from laneway.schemas.outcome import Completed
from laneway.worker.bench import engine_args
from laneway.worker.bench.mixed.drive import BenchFailed
from laneway.worker.bench.mixed.plan import prompt_ids
from laneway.worker.bench.queue.race import some_server
from laneway.worker.engine.create import create_engine
from laneway.worker.ports import Engine, EngineInfo, Progress
from laneway.worker.queue.redis_queue import QueueOptions, RedisQueue
from laneway.worker.service import Service
from laneway.worker.settings import WorkerSettings
from laneway.worker.table import table
from laneway.worker.telemetry import Fact, Telemetry

MODEL = "bench"
HOPS, TRIPS = 2, 2
"""Of the server, between a submit and its first token: the bell to the worker and the token to the producer are hops
from one connection to another; the claim, and keeping the token before it is sent, are round trips."""
PROMPT, ANSWER = 32, 8
LONG_PROMPT, LONG_ANSWER = 64, 48
_PROBES = 200


class Figures(Struct, frozen=True, kw_only=True):
    """What was measured. Milliseconds and jobs per second, medians."""

    engine: str
    direct_ttft_ms: float
    worker_ttft_ms: float
    hop_ms: float
    trip_ms: float
    added_ms: float
    """Beyond the direct call and the server's `HOPS` and `TRIPS`."""
    direct_jobs_s: tuple[float, ...]
    worker_jobs_s: tuple[float, ...]
    share: float
    """Of the direct throughput."""


class _Lent:
    """An engine that is up, and stays up when a worker has ended."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def start(self, progress: Progress) -> EngineInfo:
        return self._engine.info

    async def stop(self) -> None:
        return None


class _Ways:
    """The same jobs, both ways."""

    def __init__(self, engine: Engine, producer: Producer) -> None:
        self._engine = engine
        self._producer = producer
        self._count = 0

    def _fields(self, prompt: int, answer: int) -> JobFields:
        self._count += 1
        return JobFields(
            model=MODEL,
            prompt_token_ids=prompt_ids("overhead", self._count, prompt, self._engine.info.vocabulary),
            sampling={"max_tokens": answer, "temperature": 0.0, "ignore_eos": True},
        )

    async def direct(self, prompt: int, answer: int) -> float:
        """Seconds to the first token of a job that runs to its end."""
        fields, begin, first = self._fields(prompt, answer), time.perf_counter(), 0.0
        job = build_job(id=new_job_id(MODEL, 0), **fields)
        async for pieces in self._engine.generate(job.id, await self._engine.prepare(job), 0):
            if not first and any(piece.token_ids for piece in pieces):
                first = time.perf_counter() - begin
        return first

    async def worker(self, prompt: int, answer: int) -> float:
        """The same through the queue."""
        fields, begin, first = self._fields(prompt, answer), time.perf_counter(), 0.0
        fields["stream"] = True
        job = await self._producer.submit(**fields)
        async for event in self._producer.stream(job.id):
            if not first and isinstance(event, Tokens):
                first = time.perf_counter() - begin
        return first

    async def direct_rate(self, jobs: int) -> float:
        """Jobs per second of a plain engine with everything submitted at once."""
        begin = time.perf_counter()
        await asyncio.gather(*(self.direct(LONG_PROMPT, LONG_ANSWER) for _ in range(jobs)))
        return jobs / (time.perf_counter() - begin)

    async def worker_rate(self, jobs: int) -> float:
        """The same through the queue, from the first submit to the last outcome."""
        begin = time.perf_counter()
        offered = [JobFields(**self._fields(LONG_PROMPT, LONG_ANSWER), slo="throughput") for _ in range(jobs)]
        ids = [job.id async for job in self._producer.submit_many(offered)]
        for result in await asyncio.gather(*(self._producer.result(each) for each in ids)):
            if not isinstance(result.outcome, Completed):
                raise BenchFailed(f"expected completed jobs, got {type(result.outcome).__name__}")
        return jobs / (time.perf_counter() - begin)


async def measure(settings: WorkerSettings, trials: int, rounds: int, url: str | None) -> Figures:
    """Measure on an engine of its own."""
    engine = create_engine(settings)
    try:
        info = await engine.start(lambda phase, share: None)
        with some_server(url) as server:
            hop, trip = await _server_s(server)
            async with _worker(engine, settings, server), Producer(server, check_model=False) as producer:
                ways = _Ways(engine, producer)
                direct, worker = await _turns(
                    trials, lambda: ways.direct(PROMPT, ANSWER), lambda: ways.worker(PROMPT, ANSWER)
                )
                jobs = 4 * info.seats
                rates, ours = await _turns(
                    rounds, lambda: ways.direct_rate(jobs), lambda: ways.worker_rate(jobs)
                )
    finally:
        await engine.stop()
    added = median(worker) - median(direct) - HOPS * hop - TRIPS * trip
    return Figures(
        engine=info.version,
        direct_ttft_ms=round(1000 * median(direct), 2),
        worker_ttft_ms=round(1000 * median(worker), 2),
        hop_ms=round(1000 * hop, 3),
        trip_ms=round(1000 * trip, 3),
        added_ms=round(1000 * added, 2),
        direct_jobs_s=tuple(round(rate, 3) for rate in rates),
        worker_jobs_s=tuple(round(rate, 3) for rate in ours),
        share=round(median(ours) / median(rates), 4),
    )


async def _turns(
    rounds: int, one: Callable[[], Awaitable[float]], other: Callable[[], Awaitable[float]]
) -> tuple[list[float], list[float]]:
    """Both, as often, who begins changing from round to round; a first round of each is not counted."""
    found: tuple[list[float], list[float]] = ([], [])
    ways = (one, other)
    for number in range(rounds + 1):
        for place in (0, 1) if number % 2 else (1, 0):
            value = await ways[place]()
            if number:
                found[place].append(value)
    return found


async def _server_s(url: str) -> tuple[float, float]:
    """Median seconds from one connection to another that waits in a blocking read, and of a round trip."""
    hops, trips = [], []
    async with redis.asyncio.from_url(url) as writer, redis.asyncio.from_url(url) as reader:
        for number in range(_PROBES):
            begin = time.perf_counter()
            await writer.ping()
            trips.append(time.perf_counter() - begin)
            last = f"{number}-1"
            waiting = asyncio.create_task(reader.xread({"hops": last}, block=1000))
            await asyncio.sleep(0.002)
            begin = time.perf_counter()
            await writer.xadd("hops", {"n": number}, id=f"{number + 1}-1")
            await waiting
            hops.append(time.perf_counter() - begin)
        await writer.delete("hops")
    return median(hops), median(trips)


@asynccontextmanager
async def _worker(engine: Engine, settings: WorkerSettings, url: str) -> AsyncIterator[None]:
    """A whole worker around the engine, ready."""
    ready, name = asyncio.Event(), new_worker_id("overhead")

    def listen(fact: Fact) -> None:
        if fact.event == "phase.changed" and fact.data["phase"] == "ready":
            ready.set()

    service = Service(
        settings=settings,
        queue=RedisQueue(MODEL, name, QueueOptions(url=url)),
        engine=cast(Engine, _Lent(engine)),
        adapters={},
        worker=name,
        telemetry=Telemetry(listen),
    )
    running = asyncio.create_task(service.run())
    up = asyncio.create_task(ready.wait())
    await asyncio.wait({running, up}, return_when=asyncio.FIRST_COMPLETED)
    try:
        if running.done():
            running.result()
        yield
    finally:
        up.cancel()
        service.drain()
        await running


# --- the command --------------------------------------------------------------


def configure(parser: ArgumentParser) -> None:
    """Arguments of `laneway bench overhead`."""
    engine_args.configure(parser)
    parser.add_argument("--trials", type=int, default=20, metavar="N", help="jobs one at a time (20)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="of four full engines each (3)")
    parser.add_argument("--redis-url", metavar="URL", help="an EMPTY database; default: an embedded server")
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of a table")


def run(args: Namespace) -> int:
    """Measure and print. Returns 0, or 2 for a number below one."""
    if min(args.trials, args.rounds) < 1:
        print("--trials, --rounds: expected at least 1", file=sys.stderr)
        return 2
    settings = engine_args.settings_of(args)
    figures = asyncio.run(measure(settings, args.trials, args.rounds, args.redis_url))
    print(msgspec.json.encode(figures).decode() if args.json else render(figures))
    return 0


def render(figures: Figures) -> str:
    """A row per figure."""
    rows = [
        ("first token, direct", f"{figures.direct_ttft_ms:.2f} ms", figures.engine),
        ("first token, worker", f"{figures.worker_ttft_ms:.2f} ms", "from the submit, one job at a time"),
        (
            "of that, the server",
            f"{HOPS * figures.hop_ms + TRIPS * figures.trip_ms:.2f} ms",
            f"{HOPS} hops, {TRIPS} round trips",
        ),
        ("added", f"{figures.added_ms:.2f} ms", ""),
        ("saturated, direct", f"{median(figures.direct_jobs_s):.2f} jobs/s", "everything submitted at once"),
        ("saturated, worker", f"{median(figures.worker_jobs_s):.2f} jobs/s", f"{figures.share:.1%}"),
    ]
    return table(("figure", "value", ""), rows)


COMMAND = Command("overhead", "what a worker adds to an engine that is called directly", configure, run)

"""Wiring: the one place that knows every concrete class, and what a worker process does from start to exit."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import uvloop

from laneway.schemas.errors import LanewayError
from laneway.schemas.ids import AdapterId, WorkerId, new_worker_id
from laneway.worker import logs
from laneway.worker.engine.adapter_files import adapter_digest
from laneway.worker.engine.create import create_engine
from laneway.worker.errors import (
    EngineDied,
    EngineStartFailed,
    QueueUnavailable,
    QueueUnfit,
    SettingsError,
)
from laneway.worker.health import HealthServer, Page, as_json
from laneway.worker.metrics import CONTENT_TYPE, Measures, Metrics
from laneway.worker.ports import Adapter, Depth, Engine, EngineStats, JobQueue
from laneway.worker.queue.memory import MemoryServer
from laneway.worker.queue.memory_queue import MemoryQueue
from laneway.worker.queue.redis_queue import QueueOptions, RedisQueue
from laneway.worker.service import BEAT_S, Service
from laneway.worker.settings import WorkerSettings, load_settings
from laneway.worker.telemetry import Telemetry
from laneway.worker.watchdog import Watchdog

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_ENGINE_DIED = 3
EXIT_NO_QUEUE = 4
EXIT_NO_START = 5
EXIT_CODES = {
    EXIT_OK: "drained after SIGTERM or SIGINT",
    EXIT_FAILED: "a defect of Laneway; the log says where",
    EXIT_USAGE: "a wrong option, or the health port is taken",
    EXIT_ENGINE_DIED: "the engine died or hung; its jobs were offered again",
    EXIT_NO_QUEUE: "the server was not there at start, or is not fit",
    EXIT_NO_START: "the engine did not come up",
    Watchdog.EXIT: "the end took too long: the process ended itself by force",
}

DEPTHS_S = 2.0
"""Patience with the server at a scrape."""
LOOP_S = 30.0
"""A loop that has not gone round for so long is dead: /healthz says so."""


def main(argv: Sequence[str], environ: Mapping[str, str] | None = None) -> int:
    """Run a worker with the options in `argv`; the exit code."""
    try:
        settings = load_settings(argv, environ)
    except SettingsError as error:
        sys.stderr.write(f"laneway worker: {error}\n")
        return EXIT_USAGE
    return run(settings)


def run(settings: WorkerSettings) -> int:
    """Run a worker until a signal, or something worse, ends it; the exit code."""
    logger = logs.configure(settings.log_format, settings.log_level)
    worker = new_worker_id(socket.gethostname())
    logger.info("worker.starting", worker=worker, **settings.masked())
    code = EXIT_FAILED
    try:
        with Watchdog() as watchdog, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            code = runner.run(_serve(settings, worker, logger, watchdog))
    except LanewayError as error:
        code = _exit_code(error)
        logger.critical("worker.failed", worker=worker, reason=str(error), exit_code=code)
    except Exception as error:  # its text may hold anything: only where it came from is told
        logger.critical("worker.failed", worker=worker, exit_code=code, **logs.defect(error))
    else:
        logger.info("worker.ended", worker=worker, exit_code=code)
    return code


async def _serve(settings: WorkerSettings, worker: WorkerId, logger: Any, watchdog: Watchdog) -> int:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(logs.exception_writer(logger))
    metrics = Metrics()
    queue, engine = build_queue(settings, worker), create_engine(settings)
    service = Service(
        settings=settings,
        queue=queue,
        engine=engine,
        adapters=find_adapters(settings),
        worker=worker,
        telemetry=Telemetry(logs.listener(logger, worker), metrics.listen),
        ending=watchdog.set,
    )
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, service.drain)
    if settings.health_port == "off":
        await service.run()
        return EXIT_OK
    health = HealthServer(settings.health_host, settings.health_port, pages(service, metrics, queue, engine))
    async with health:
        logger.info("health.listening", worker=worker, host=settings.health_host, port=health.port)
        await service.run()
    return EXIT_OK


def _exit_code(error: LanewayError) -> int:
    if isinstance(error, SettingsError):
        return EXIT_USAGE
    if isinstance(error, EngineDied):
        return EXIT_ENGINE_DIED
    if isinstance(error, QueueUnavailable | QueueUnfit):
        return EXIT_NO_QUEUE
    return EXIT_NO_START if isinstance(error, EngineStartFailed) else EXIT_FAILED


# --- parts --------------------------------------------------------------------


def build_queue(settings: WorkerSettings, worker: WorkerId) -> JobQueue:
    """The queue that `redis_url` names."""
    if settings.redis_url.startswith("memory://"):
        return MemoryQueue(
            MemoryServer(), settings.name, worker, partitions=settings.partitions, lease_s=settings.lease_s
        )
    options = QueueOptions(
        url=settings.redis_url,
        namespace=settings.namespace,
        partitions=settings.partitions,
        lease_s=settings.lease_s,
        result_ttl_s=settings.result_ttl_s,
        job_ttl_s=settings.job_ttl_s,
        beat_s=BEAT_S,
    )
    return RedisQueue(settings.name, worker, options)


def find_adapters(settings: WorkerSettings) -> dict[AdapterId, Adapter]:
    """The adapters that the settings name, each with the digest of its content."""
    found = {}
    for name, path in settings.adapters.items():
        folder = Path(path).expanduser().absolute()
        found[AdapterId(name)] = Adapter(id=AdapterId(name), path=str(folder), digest=adapter_digest(folder))
    return found


# --- pages --------------------------------------------------------------------


def pages(service: Service, metrics: Metrics, queue: JobQueue, engine: Engine) -> dict[str, Page]:
    """What the health server serves."""

    async def healthz() -> tuple[int, str, bytes]:
        idle = time.monotonic() - service.intake.looked_at
        alive = service.phase != "ready" or idle < LOOP_S
        return as_json(
            200 if alive else 503, phase=service.phase, queue=service.link.up, idle_s=round(idle, 3)
        )

    async def readyz() -> tuple[int, str, bytes]:
        return as_json(200 if service.ready else 503, phase=service.phase)

    async def exposition() -> tuple[int, str, bytes]:
        up = service.phase in ("ready", "draining")
        ledger = service.hands.ledger() if up else None
        now = Measures(
            phase=service.phase,
            up=service.link.up,
            depths=await _depths(queue) if up else None,
            now_ms=queue.now_ms() if up else 0,
            seats=ledger.seats if ledger else 0,
            seats_taken=ledger.latency + ledger.throughput if ledger else 0,
            jobs=len(service.hands),
            engine=engine.stats() if up else EngineStats(),
            cost_error=service.observer.error,
            events_dropped=service.publisher.dropped,
        )
        return 200, CONTENT_TYPE, metrics.render(now)

    return {"/healthz": healthz, "/readyz": readyz, "/metrics": exposition}


async def _depths(queue: JobQueue) -> list[Depth] | None:
    try:
        async with asyncio.timeout(DEPTHS_S):
            return await queue.depths()
    except (QueueUnavailable, TimeoutError):
        return None

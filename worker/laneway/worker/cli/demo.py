"""`laneway demo`: a server, a worker and mixed work, from nothing to nothing."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from laneway.producer import Producer
from laneway.schemas.command import Command
from laneway.schemas.events import Restarted, Tokens
from laneway.schemas.ids import JobId
from laneway.worker.cli import demo_jobs, demo_report
from laneway.worker.cli.demo_jobs import ADAPTERS, COUNT
from laneway.worker.cli.demo_report import Ended
from laneway.worker.cli.demo_worker import WorkerFailed, WorkerProcess
from laneway.worker.cli.screen import Screen
from laneway.worker.embedded import EmbeddedServer
from laneway.worker.errors import QueueUnavailable
from laneway.worker.queue.admin import drop_namespace, server_facts
from laneway.worker.settings import load_settings, mask_url

START_S = 900.0
"""Patience with a worker's start: a first start converts the model and may compile."""
RESULT_S = 600.0
MODEL = "demo"
INTERRUPTED = 130


def configure(parser: ArgumentParser) -> None:
    """Arguments of `laneway demo`."""
    parser.add_argument(
        "--redis-url", metavar="URL", help="default: LANEWAY_REDIS_URL, else a server of its own"
    )
    parser.add_argument(
        "--engine", choices=("vllm", "fake"), default="vllm", help="fake needs no model (vllm)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON value instead of tables")


def run(args: Namespace) -> int:
    """Run the demo; 0 when every job completed."""
    folder = Path(tempfile.mkdtemp(prefix="laneway-demo-"))
    keep = False
    try:
        return asyncio.run(_demo(args, folder))
    except asyncio.CancelledError:  # SIGTERM; asyncio.run itself tells of Ctrl-C
        return INTERRUPTED
    except WorkerFailed:
        keep = True  # the log in it tells more than the one line
        raise
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


async def _demo(args: Namespace, folder: Path) -> int:
    this = asyncio.current_task()
    assert this is not None  # noqa: S101 - we are in a coroutine
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    screen = Screen(quiet=args.json)
    begin = time.monotonic()
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(_server(args.redis_url, folder, screen))
        namespace = await stack.enter_async_context(_namespace(url))
        worker = WorkerProcess(
            await _options(args.engine, url, namespace, screen), folder / "worker.log", screen.step
        )
        stack.push_async_callback(worker.stop)
        with screen.waiting("starting a worker"):
            await worker.start(START_S)
        screen.say(f"worker ready after {time.monotonic() - begin:.0f} s")
        producer = await stack.enter_async_context(Producer(url, namespace=namespace))
        jobs = await _unless_worker_ends(_work(producer, screen), worker)
        with screen.waiting("draining the worker"):
            await worker.stop()
    return _report(jobs, as_json=args.json)


@asynccontextmanager
async def _server(url: str | None, folder: Path, screen: Screen) -> AsyncIterator[str]:
    given = url or os.environ.get("LANEWAY_REDIS_URL")
    if given:
        given = load_settings(["--redis-url", given]).redis_url  # refused here when it is not a URL
        screen.say(f"server: {mask_url(given)}")
        await server_facts(given)  # one that is not there is told at once, not after a worker's patience
        yield given
        return
    # Started in this thread: it lives as long as the server should.
    with EmbeddedServer(folder / "redis") as server:
        screen.say(f"server: embedded Valkey at {server.url}")
        yield server.url


@asynccontextmanager
async def _namespace(url: str) -> AsyncIterator[str]:
    """A namespace of this run's own; its keys are gone afterwards."""
    name = f"demo-{os.urandom(4).hex()}"
    try:
        yield name
    except BaseException:
        with suppress(QueueUnavailable):  # what went wrong before says more
            await drop_namespace(url, name)
        raise
    await drop_namespace(url, name)


async def _options(engine: str, url: str, namespace: str, screen: Screen) -> list[str]:
    paths = dict.fromkeys(ADAPTERS, "made-by-the-fake-engine")
    if engine == "vllm":
        from laneway.worker.engine.demo_model import demo_adapters, demo_model

        with screen.waiting("unpacking the demo model"):
            model = await asyncio.to_thread(demo_model)
            paths = {name: str(path) for name, path in demo_adapters(model).items()}
    adapters = [f"--adapters.{name}={path}" for name, path in paths.items()]
    return [
        f"--redis-url={url}",
        f"--namespace={namespace}",
        f"--model={MODEL}",
        f"--engine={engine}",
        "--engine.max-num-batched-tokens=128",  # a step of 512 takes a CPU core seconds, and a chat waits for it
        "--latency-share=0.5",  # eight of the CPU's sixteen seats: the latency jobs of this demo come all at once
        *adapters,
        # A busy laptop may need many seconds for a step: that is slow, not dead.
        "--lease-s=60",
        "--hang-s=240",
    ]


async def _work(producer: Producer, screen: Screen) -> list[Ended]:
    """Submit everything, show one answer as it comes, wait for the rest."""
    bulk, chats = demo_jobs.throughput_jobs(MODEL), demo_jobs.latency_jobs(MODEL)
    asked = {job.id: fields async for job, fields in _submit(producer, [*bulk, *chats])}
    screen.say(
        f"submitted {len(bulk)} throughput and then {len(chats)} latency jobs over {len(ADAPTERS)} adapters"
    )
    shown = next(job_id for job_id, fields in asked.items() if fields.get("stream"))
    show = asyncio.create_task(_show(producer, shown, asked[shown]["messages"][0]["content"], screen))
    waits = [asyncio.create_task(producer.result(job_id, timeout=RESULT_S)) for job_id in asked]
    try:
        await show
        with screen.waiting(f"0 of {COUNT} jobs done"):
            for count, wait in enumerate(asyncio.as_completed(waits), start=1):
                await wait
                screen.step(f"{count} of {COUNT} jobs done", plain=count == COUNT)
    finally:
        for task in (show, *waits):
            task.cancel()
        await asyncio.gather(show, *waits, return_exceptions=True)
    results = [wait.result() for wait in waits]
    return [
        Ended(fields["slo"], fields.get("lora", "base"), result)
        for fields, result in zip(asked.values(), results, strict=True)
    ]


async def _submit(producer: Producer, jobs: list[Any]) -> AsyncIterator[tuple[Any, dict[str, Any]]]:
    fields = iter(jobs)
    async for job in producer.submit_many(jobs):
        yield job, next(fields)


async def _show(producer: Producer, job_id: JobId, question: str, screen: Screen) -> None:
    screen.write(f"\n> {question}\n")
    async for event in producer.stream(job_id):
        match event:
            case Tokens(text=text):
                screen.write(text)
            case Restarted():
                screen.write("\n(started anew)\n")
            case _:
                pass
    screen.write("\n\n")


async def _unless_worker_ends(work: Any, worker: WorkerProcess) -> list[Ended]:
    """The jobs, or the worker's reason for having ended before they were done."""
    task = asyncio.ensure_future(work)
    ended = asyncio.ensure_future(worker.ended())
    try:
        await asyncio.wait({task, ended}, return_when=asyncio.FIRST_COMPLETED)
        if ended.done() and not task.done():
            ended.result()
        jobs: list[Ended] = await task
        return jobs
    finally:
        for waiting in (task, ended):
            waiting.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(task, ended, return_exceptions=True)


def _report(jobs: list[Ended], *, as_json: bool) -> int:
    classes = demo_report.groups(jobs, lambda job: job.slo, ("latency", "throughput"))
    adapters = demo_report.groups(jobs, lambda job: job.lora, ("base", *ADAPTERS))
    failed = demo_report.failures(jobs)
    if as_json:
        print(msgspec.json.encode({"classes": classes, "adapters": adapters, "failures": failed}).decode())
    else:
        print(demo_report.render("class", classes))
        print()
        print(demo_report.render("adapter", adapters))
    for line in failed:
        print(line, file=sys.stderr)
    return 1 if failed else 0


COMMAND = Command("demo", "mixed work on a small real model, with its own server", configure, run)

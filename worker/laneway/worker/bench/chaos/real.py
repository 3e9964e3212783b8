"""The same with real engines: two workers with vLLM, whose engine processes and whose own processes are killed.

The jobs are greedy, so that each answer can be held against the one that the same engines gave undisturbed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, nullcontext, suppress
from enum import Enum
from pathlib import Path

from msgspec import Struct

from laneway.producer import Producer
from laneway.schemas.ids import new_worker_id
from laneway.schemas.outcome import Completed, Failed, Result
from laneway.worker.bench.chaos.audit import Accepted, Ended, Evidence, Report, audit
from laneway.worker.bench.chaos.fleet import Fleet, Options, Worker
from laneway.worker.bench.chaos.plan import Kind
from laneway.worker.bench.chaos.server import ChaosServer
from laneway.worker.errors import EngineDied
from laneway.worker.queue.redis_queue import QueueOptions, RedisQueue

MODEL = "demo"
LEASE_S = 20.0
READY_S = 400.0
RESULT_S = 400.0
STRIKE_S = 120.0
"""Patience until a worker that is to be hit has a job in the middle of its answer."""
GONE_S = 20.0
TOKENS = 48
OPTIONS: Options = {
    "engine": "vllm",
    "model": MODEL,
    "lease-s": LEASE_S,
    "hang-s": 180,
    "engine.dtype": "float32",
    "engine.max-num-seqs": 8,
    "engine.max-model-len": 1024,
}
_POLL_S = 0.02


class Victim(Enum):
    """What is killed."""

    ENGINE = "EngineCore"
    WORKER = "worker"


WAVES: tuple[tuple[tuple[Victim, int], ...], ...] = (
    ((Victim.ENGINE, 0), (Victim.WORKER, 1)),
    ((Victim.ENGINE, 1), (Victim.WORKER, 0)),
    ((Victim.ENGINE, 0),),
)
"""What is killed one after another in each wave of jobs, and of which worker. A wave begins with both workers ready."""


class Process(Struct, frozen=True):
    """A process, told from a later one of the same number by the moment at which it began."""

    pid: int
    began: str

    @property
    def lives(self) -> bool:
        """Whether it is still there, and not only waits to be reaped."""
        now = _stat(self.pid)
        return now is not None and now[0] != "Z" and now[1] == self.began


async def chaos(jobs: int, binary: Path, keep: Path | None = None) -> Report:
    """Answer `jobs` jobs undisturbed, then again with kills, and judge what is left.

    Raises:
        EmbeddedServerFailed: the server did not start.
        EngineStartFailed: a worker did not come up, or not again.
        EngineDied: a worker that was to be hit had no job in hand.
    """
    with nullcontext(keep) if keep else tempfile.TemporaryDirectory(prefix="laneway-chaos-") as name:
        async with AsyncExitStack() as stack:
            server = ChaosServer(binary, Path(name) / "server")
            stack.callback(server.stop)
            server.launch()
            await asyncio.to_thread(server.wait_until_up)
            fleet = Fleet([server.url, server.url], Path(name), OPTIONS, ready_s=READY_S)
            stack.callback(fleet.stop)
            await fleet.start()
            producer = await stack.enter_async_context(Producer(server.url, check_model=False))
            return await RealRun(jobs, server, fleet, producer).report()


class RealRun:
    """Both rounds."""

    def __init__(self, jobs: int, server: ChaosServer, fleet: Fleet, producer: Producer) -> None:
        self._prompts = [f"Note {number}. A story about the number {number}:" for number in range(jobs)]
        self._server = server
        self._fleet = fleet
        self._producer = producer
        self._family: set[Process] = set()

    async def report(self) -> Report:
        """Do it all, and judge it."""
        expected = await self._results([await self._submit(prompt) for prompt in self._prompts])
        watch = asyncio.create_task(self._fleet.watch())
        try:
            ids: list[str] = []
            size = -(-len(self._prompts) // len(WAVES))
            for number, wave in enumerate(WAVES):
                await self._fleet.wait_until_ready()
                self._note_family()
                ids += [await self._submit(p) for p in self._prompts[number * size : (number + 1) * size]]
                for victim, worker in wave:
                    await self._strike(victim, self._fleet.workers[worker], set(ids))
            results = await self._results(ids)
            await self._fleet.wait_until_ready()
            self._note_family()
        finally:
            watch.cancel()
            await asyncio.to_thread(self._fleet.stop)
        return audit(await self._evidence(dict(zip(ids, results, strict=True)), expected))

    # --- jobs -------------------------------------------------------------------

    async def _submit(self, prompt: str) -> str:
        sampling = {"temperature": 0.0, "max_tokens": TOKENS, "ignore_eos": True}
        return (await self._producer.submit(model=MODEL, prompt=prompt, sampling=sampling)).id

    async def _results(self, ids: Sequence[str]) -> list[Result | None]:
        async def one(job_id: str) -> Result | None:
            with suppress(TimeoutError):
                return await self._producer.result(job_id, RESULT_S)
            return None

        return list(await asyncio.gather(*(one(job_id) for job_id in ids)))

    # --- what breaks ------------------------------------------------------------

    async def _strike(self, victim: Victim, worker: Worker, ids: set[str]) -> None:
        """Kill it in the middle of an answer."""
        process = worker.process_name
        give_up = time.monotonic() + STRIKE_S
        while not self._answers(process, ids):
            if time.monotonic() > give_up:
                raise EngineDied(
                    f"{process} had no job in hand for {STRIKE_S:g} s: there was nothing to kill"
                )
            await asyncio.sleep(_POLL_S)
        if victim is Victim.WORKER:
            self._fleet.kill(worker.number)
            return
        for pid in _below(worker.pid):
            if victim.value in _words(pid):
                os.kill(pid, signal.SIGKILL)

    def _answers(self, process: str, ids: set[str]) -> bool:
        last: dict[str, str] = {}
        for line in self._fleet.lines():
            if line.process == process and line.job_id in ids:
                last[line.job_id] = line.event
        return not {"job.first_token", "job.resumed"}.isdisjoint(last.values())

    def _note_family(self) -> None:
        for worker in self._fleet.workers:
            for pid in _below(worker.pid):
                if (stat := _stat(pid)) is not None:
                    self._family.add(Process(pid, stat[1]))

    # --- what is left -----------------------------------------------------------

    def _orphans(self) -> int:
        return sum(process.lives for process in self._family)

    async def _evidence(
        self, results: dict[str, Result | None], expected: Sequence[Result | None]
    ) -> Evidence:
        give_up = time.monotonic() + GONE_S
        while self._orphans() and time.monotonic() < give_up:  # noqa: ASYNC110 - they set no event here
            await asyncio.sleep(_POLL_S)
        queue = RedisQueue(MODEL, new_worker_id("chaos"), QueueOptions(url=self._server.url))
        try:
            depths = await queue.depths()
        finally:
            await queue.close()
        return Evidence(
            accepted=[Accepted(job_id=job_id, kind=Kind.PLAIN) for job_id in results],
            ended={
                job_id: _judged(result, undisturbed)
                for (job_id, result), undisturbed in zip(results.items(), expected, strict=True)
                if result is not None
            },
            lines=self._fleet.lines(),
            silences=self._fleet.silences,
            waiting=sum(depth.waiting for depth in depths),
            pending=sum(depth.pending for depth in depths),
            exits=self._fleet.exits,
            orphans=self._orphans(),
        )


def _judged(result: Result, undisturbed: Result | None) -> Ended:
    outcome = result.outcome
    return Ended(
        state=result.state.value,
        by_worker=bool(result.worker),
        code=outcome.error.code if isinstance(outcome, Failed) else "",
        garbled=_token_ids(result) != _token_ids(undisturbed),
    )


def _token_ids(result: Result | None) -> list[tuple[int, ...]] | None:
    if result is None or not isinstance(result.outcome, Completed):
        return None
    return [choice.token_ids for choice in result.outcome.choices]


# --- processes, as Linux tells ------------------------------------------------


def _below(pid: int) -> list[int]:
    below: list[int] = []
    with suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            below += [int(child), *_below(int(child))]
    return below


def _stat(pid: int) -> tuple[str, str] | None:
    """State and begin of a process; None when there is none."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], fields[19]
    return None


def _words(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""

"""A run: server, workers and producer brought up, the plan carried out, and the evidence collected."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, nullcontext, suppress
from pathlib import Path

from laneway.producer import Producer, QueueFull, QueueUnavailable, SubmitUncertain
from laneway.schemas.errors import LanewayError
from laneway.schemas.events import Restarted, Tokens
from laneway.schemas.ids import new_worker_id
from laneway.schemas.outcome import Completed, Failed, Result
from laneway.worker.bench.chaos.audit import Accepted, Ended, Evidence, Outage, Report, audit
from laneway.worker.bench.chaos.fleet import ENTRY, Fleet
from laneway.worker.bench.chaos.plan import LEASE_S, Arrival, Fault, Kind, Plan, Strike
from laneway.worker.bench.chaos.server import ChaosServer
from laneway.worker.bench.chaos.wire import LossyWire
from laneway.worker.engine.fake_engine import FakeEngineSettings
from laneway.worker.engine.fake_text import fake_answer, fake_text, tokenise
from laneway.worker.errors import EmbeddedServerFailed
from laneway.worker.queue.redis_queue import QueueOptions, RedisQueue

MODEL = "demo"
_AGAIN_S = 0.1
_TICK_S = 0.05
_QUIET_LOOKS = 6
"""Looks at empty lanes, a second apart: longer than any waiter needs to find its result."""


async def chaos(
    plan: Plan, workers: int, binary: Path, entry: Sequence[str] = ENTRY, keep: Path | None = None
) -> Report:
    """Carry out `plan` on a server of its own and judge what is left. Every other worker sits behind a lossy wire.

    The logs of workers and server go into the folder `keep`, or into one that is gone afterwards.

    Raises:
        EmbeddedServerFailed: the server did not start.
        EngineStartFailed: the workers did not.
    """
    with nullcontext(keep) if keep else tempfile.TemporaryDirectory(prefix="laneway-chaos-") as name:
        async with AsyncExitStack() as stack:
            folder = Path(name)
            server = ChaosServer(binary, folder / "server")
            stack.callback(server.stop)
            server.launch()
            await asyncio.to_thread(server.wait_until_up)
            wire = await stack.enter_async_context(LossyWire(server.port))
            urls = [wire.url if number % 2 else server.url for number in range(workers)]
            fleet = Fleet(urls, folder, entry=entry)
            stack.callback(fleet.stop)
            await fleet.start()
            producer = await stack.enter_async_context(
                Producer(server.url, check_model=False, outage_s=plan.limit_s)
            )
            return await Run(plan, server, wire, fleet, producer).report()


def _judged(arrival: Arrival, result: Result, shown: str | None) -> Ended:
    """The outcome, held against the answer of an undisturbed engine, as is the text that was `shown` on the way."""
    prompt, tokens = arrival.fields["prompt"], arrival.fields["sampling"]["max_tokens"]
    answer = fake_text(fake_answer(tokenise(prompt, FakeEngineSettings().vocabulary), tokens))
    outcome = result.outcome
    texts = [result.text] if shown is None else [result.text, shown]
    if isinstance(outcome, Completed):
        garbled = any(text != answer for text in texts)
    else:
        garbled = not all(answer.startswith(text) for text in texts)
    return Ended(
        state=result.state.value,
        by_worker=bool(result.worker),
        code=outcome.error.code if isinstance(outcome, Failed) else "",
        garbled=garbled,
    )


async def _all(tasks: Sequence[asyncio.Task[None]]) -> None:
    await asyncio.gather(*tasks)


class Run:
    """One plan, being carried out."""

    def __init__(
        self, plan: Plan, server: ChaosServer, wire: LossyWire, fleet: Fleet, producer: Producer
    ) -> None:
        self._plan = plan
        self._server = server
        self._wire = wire
        self._fleet = fleet
        self._producer = producer
        self._begin = time.monotonic()
        self._accepted: list[Accepted] = []
        self._outages: list[Outage] = []
        self._ended: dict[str, Ended] = {}
        self._lag_s = 0.0

    async def report(self) -> Report:
        """Do it all, and judge it."""
        self._begin = time.monotonic()
        watch = [asyncio.create_task(self._fleet.watch()), asyncio.create_task(self._measure_lag())]
        strikes = [asyncio.create_task(self._strike(strike)) for strike in self._plan.strikes]
        jobs = [asyncio.create_task(self._follow(arrival)) for arrival in self._plan.arrivals]
        idle = asyncio.create_task(self._until_idle())
        everything = asyncio.create_task(_all(jobs))
        try:
            await asyncio.wait(
                {idle, everything}, timeout=self._plan.limit_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for task in (everything, idle, *watch, *strikes):
                task.cancel()
            ends = await asyncio.gather(everything, idle, *watch, *strikes, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception):
                raise end
        await asyncio.to_thread(self._fleet.stop)
        return audit(await self._evidence())

    # --- what breaks ------------------------------------------------------------

    async def _strike(self, strike: Strike) -> None:
        await self._until(strike.at)
        match strike.fault:
            case Fault.KILL:
                self._fleet.kill(strike.worker)
            case Fault.FREEZE:
                await self._fleet.freeze(strike.worker, strike.seconds)
            case Fault.DROP:
                self._wire.drop()
            case Fault.RESTART:
                begin = time.time()
                self._server.kill()
                try:
                    await asyncio.sleep(strike.seconds)
                finally:
                    self._server.launch()
                with suppress(EmbeddedServerFailed):  # killed again meanwhile
                    await asyncio.to_thread(self._server.wait_until_up)
                self._outages.append(Outage(begin=begin, end=time.time()))

    # --- what is submitted ------------------------------------------------------

    async def _follow(self, arrival: Arrival) -> None:
        """Submit a job, cancel it where it is to be, and wait for its result."""
        await self._until(arrival.at)
        job_id = await self._submit(arrival)
        self._accepted.append(Accepted(job_id=job_id, kind=arrival.kind))
        if arrival.kind is Kind.CANCEL:
            await asyncio.sleep(arrival.cancel_after)
            with suppress(QueueUnavailable):
                await self._producer.cancel(job_id)
        shown = await self._watch(job_id) if arrival.fields["stream"] else None
        self._ended[job_id] = _judged(arrival, await self._producer.result(job_id), shown)

    async def _watch(self, job_id: str) -> str:
        """The text that a consumer of the stream is left with."""
        text = ""
        async for event in self._producer.stream(job_id):
            if isinstance(event, Restarted):
                text = ""
            elif isinstance(event, Tokens):
                text += event.text
        return text

    async def _submit(self, arrival: Arrival) -> str:
        while True:
            try:
                return (await self._producer.submit(model=MODEL, **arrival.fields)).id
            except (QueueUnavailable, QueueFull, SubmitUncertain):
                await asyncio.sleep(_AGAIN_S)  # the same idempotency key makes it the same job

    async def _until_idle(self) -> None:
        """Return when the lanes have been empty for a while: what has no result by then gets none."""
        await self._until(self._plan.seconds)
        quiet = 0
        while quiet < _QUIET_LOOKS:
            await asyncio.sleep(1.0)
            try:
                quiet = 0 if any(await self._leftovers()) else quiet + 1
            except (LanewayError, OSError):
                quiet = 0

    async def _until(self, at: float) -> None:
        await asyncio.sleep(max(0.0, self._begin + at - time.monotonic()))

    # --- what is left -----------------------------------------------------------

    async def _evidence(self) -> Evidence:
        await asyncio.to_thread(self._server.wait_until_up)
        waiting, pending = await self._leftovers()
        return Evidence(
            accepted=self._accepted,
            ended=self._ended,
            lines=await asyncio.to_thread(self._fleet.lines),
            silences=self._fleet.silences,
            outages=self._outages,
            waiting=waiting,
            pending=pending,
            exits=self._fleet.exits,
            lease_s=LEASE_S,
            lag_s=self._lag_s,
        )

    async def _measure_lag(self) -> None:
        while True:
            begin = time.monotonic()
            await asyncio.sleep(_TICK_S)
            self._lag_s = max(self._lag_s, time.monotonic() - begin - _TICK_S)

    async def _leftovers(self) -> tuple[int, int]:
        """Entries in the lanes that wait, and those in somebody's hands."""
        queue = RedisQueue(MODEL, new_worker_id("chaos"), QueueOptions(url=self._server.url))
        try:
            depths = await queue.depths()
        finally:
            with suppress(LanewayError):
                await queue.close()
        return sum(depth.waiting for depth in depths), sum(depth.pending for depth in depths)

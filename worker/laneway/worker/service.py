"""The life of a worker: start, claim and run jobs, drain, end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any

from laneway.schemas.cards import AttachJob, CancelJob, ModelCard, WorkerCard
from laneway.schemas.ids import AdapterId, WorkerId
from laneway.worker.adapters import AdapterShelf
from laneway.worker.admitter import Admitter
from laneway.worker.errors import EngineDied, EngineStartFailed, QueueUnavailable
from laneway.worker.hands import Hands
from laneway.worker.intake import Intake
from laneway.worker.keeping import AnswerKeeper
from laneway.worker.lease import LeaseKeeper
from laneway.worker.link import Link, Pause
from laneway.worker.observer import Observer
from laneway.worker.ports import Adapter, Engine, JobQueue
from laneway.worker.publisher import Publisher
from laneway.worker.settings import WorkerSettings
from laneway.worker.telemetry import Telemetry
from laneway.worker.verdicts import Stop
from laneway.worker.warmup import profile, warm_up

BEAT_S = 2.0
CONTROL_S = 1.0
"""Longest wait of one look for cancels and attachments."""
LET_GO_S = 5.0
"""Time to break attempts off and, once more, to hand jobs back."""
STOP_ENGINE_S = 10.0
ENDING_S = 3 * LET_GO_S + STOP_ENGINE_S
"""All that the end may take once the drain is over."""


class Service:
    """One worker, from start to end."""

    def __init__(
        self,
        *,
        settings: WorkerSettings,
        queue: JobQueue,
        engine: Engine,
        adapters: Mapping[AdapterId, Adapter],
        worker: WorkerId,
        telemetry: Telemetry,
        ending: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        """`ending` is told, whenever an end begins, in how many seconds the process should be gone."""
        self.settings = settings
        self.worker = worker
        self.phase = "new"
        self._queue = queue
        self._engine = engine
        self._telemetry = telemetry
        self._ending = ending
        self._adapter_ids = tuple(adapters)
        self._draining = asyncio.Event()
        self._hurry = asyncio.Event()
        self._phase_since = time.monotonic()
        self.observer = Observer()
        self.admitter = Admitter(
            engine,
            settings,
            self.observer,
            now_ms=queue.now_ms,
            broke=lambda error: self.hands.give_up(error),
        )
        self._build(adapters)

    def _build(self, adapters: Mapping[AdapterId, Adapter]) -> None:
        queue, engine, settings, telemetry = self._queue, self._engine, self.settings, self._telemetry
        self.link = Link(telemetry)
        self.adapters = AdapterShelf(adapters, lambda: engine.info.max_loras, engine.load_adapter)
        self.keeper = AnswerKeeper(queue, self.link, lambda job_id, why: self.hands.lose(job_id, why))
        self.publisher = Publisher(
            queue, self.link, lambda job_id: self.lease.is_stale(job_id), save=self.keeper.save
        )
        self.lease = LeaseKeeper(
            queue,
            self.link,
            lease_s=settings.lease_s,
            hang_s=settings.hang_s,
            steps=lambda: engine.stats().steps,
            lost=lambda job_id, why: self.hands.lose(job_id, why),
        )
        self.hands = Hands(
            queue=queue,
            engine=engine,
            link=self.link,
            publisher=self.publisher,
            lease=self.lease,
            keeper=self.keeper,
            adapters=self.adapters,
            admitter=self.admitter,
            telemetry=telemetry,
            worker=self.worker,
            changed=lambda: self.intake.room_changed(),
        )
        self.intake = Intake(
            settings=settings,
            queue=queue,
            link=self.link,
            hands=self.hands,
            lease=self.lease,
            telemetry=telemetry,
        )

    def drain(self) -> None:
        """Stop claiming at once and end when the jobs in hand are done. Called again: hand them back now."""
        if self._draining.is_set():
            self._hurry.set()
        self._draining.set()
        self.intake.close()

    @property
    def ready(self) -> bool:
        """Whether the worker claims jobs."""
        return self.phase == "ready"

    async def run(self) -> None:
        """Start, work, end. Returns after a drain.

        Raises:
            QueueUnavailable: the server was not there at start.
            QueueUnfit: the server cannot hold jobs safely.
            EngineStartFailed: the engine did not come up.
            EngineDied: the engine died or hung; its jobs are offered again.
        """
        try:
            if await self._unless_drained(self._start()):
                await self._work()
        finally:
            self._enter("ending")
            self._ending(STOP_ENGINE_S + LET_GO_S)
            # Whatever goes wrong from here on must not hide why the worker ends.
            with suppress(Exception):
                async with asyncio.timeout(STOP_ENGINE_S):
                    await self._engine.stop()
            with suppress(Exception):
                async with asyncio.timeout(LET_GO_S):
                    await self._queue.close()

    # --- start ------------------------------------------------------------------

    async def _start(self) -> None:
        self._enter("starting")
        await self._open(ModelCard(name=self.settings.name, partitions=self.settings.partitions))
        limit = self.settings.engine_start_s or None
        try:
            async with asyncio.timeout(limit):
                info = await self._engine.start(self._progress)
                self._enter("warming")
                await warm_up(self._engine, self.settings.name, self._telemetry)
                found = await profile(self._engine, self.settings.name)
                self.observer.start(found, self._engine.stats(), info)
        except TimeoutError:
            raise EngineStartFailed(f"the engine was not up within {limit:g} s (engine_start_s)") from None
        await self._open(
            ModelCard(
                name=self.settings.name,
                partitions=self.settings.partitions,
                context_tokens=info.context_tokens,
                vocabulary=info.vocabulary,
                adapters=self._adapter_ids,
                floor=self.observer.floor,
            )
        )

    async def _open(self, card: ModelCard) -> None:
        pause = Pause()
        give_up = time.monotonic() + self.settings.start_timeout_s
        while True:
            try:
                return await self.link(self._queue.open(card))
            except QueueUnavailable:
                if time.monotonic() >= give_up:
                    raise
                await asyncio.sleep(pause.next())

    def _progress(self, step: str, share: float) -> None:
        self._telemetry.tell("engine.progress", step=step, share=share)

    async def _unless_drained(self, work: Coroutine[Any, Any, None]) -> bool:
        """Run `work`; a drain cancels it. Whether it was done."""
        task = asyncio.create_task(work)
        drained = asyncio.create_task(self._draining.wait())
        try:
            await asyncio.wait({task, drained}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                self._ending(ENDING_S)
                task.cancel()
                await asyncio.wait({task}, timeout=STOP_ENGINE_S)
                return False
            task.result()
            return True
        finally:
            drained.cancel()
            task.cancel()

    # --- work -------------------------------------------------------------------

    async def _work(self) -> None:
        self._enter("ready")
        intake = [self._loop(self.intake.claim_forever()), self._loop(self.intake.reclaim_forever())]
        upkeep = [
            self._loop(self.lease.renew_forever()),
            self._loop(self.lease.watch_forever()),
            self._loop(self.publisher.run()),
            self._loop(self.keeper.run()),
            self._loop(self._obey_forever()),
            self._loop(self._beat_forever()),
            self._loop(self._engine.died.wait()),
            self._loop(self.hands.broken.wait()),
        ]
        drained = self._loop(self._draining.wait())
        try:
            await asyncio.wait({drained, *intake, *upkeep}, return_when=asyncio.FIRST_COMPLETED)
            if self._draining.is_set():
                await self._drain(intake, upkeep)
            await self._end(intake, upkeep)
        finally:
            for task in (drained, *intake, *upkeep):
                task.cancel()
            await asyncio.wait({drained, *intake, *upkeep}, timeout=LET_GO_S)
        self._raise_defect([*intake, *upkeep])

    def _loop(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return asyncio.create_task(work, name=getattr(work, "__qualname__", "loop"))

    async def _obey_forever(self) -> None:
        pause = Pause()
        while True:
            try:
                controls = await self.link(self._queue.controls(CONTROL_S))
                pause.reset()
            except QueueUnavailable:
                await asyncio.sleep(pause.next())
                continue
            for control in controls:
                match control:
                    case CancelJob(job_id=job_id):
                        self.hands.cancel(job_id)
                    case AttachJob(job_id=job_id, output=output):
                        self.hands.attach(job_id, output)

    async def _beat_forever(self) -> None:
        while True:
            with suppress(QueueUnavailable):
                await self.link(self._queue.beat(self.card()))
            await asyncio.sleep(BEAT_S)

    def card(self) -> WorkerCard:
        """What this worker tells the others of itself now."""
        ledger = self.hands.ledger()
        return WorkerCard(
            id=self.worker,
            model=self.settings.name,
            phase=self.phase,
            engine=self._engine.info.version,
            seats=ledger.seats,
            seats_free=ledger.free,
            jobs=len(self.hands),
            adapters=self._adapter_ids,
            partitions=self.settings.partitions,
            gate=len(self.admitter),
            kv_usage=self._engine.stats().kv_usage,
            budget=self.admitter.budget,
            plans_s=self.admitter.plans_s,
            cost_error=self.observer.error,
            waits={
                f"{slo.value}.{bucket.value}": why.value for (slo, bucket), why in self.admitter.waits.items()
            },
        )

    # --- end --------------------------------------------------------------------

    async def _drain(self, intake: list[asyncio.Task[Any]], upkeep: list[asyncio.Task[Any]]) -> None:
        """Let the jobs in hand end: until there are none, `drain_s` have passed, a second call, or a defect."""
        self._enter("draining")
        self._ending(self.settings.drain_s + ENDING_S)
        idle = self._loop(self._wait_until_idle(intake))
        hurry = self._loop(self._hurry.wait())
        with suppress(QueueUnavailable):
            async with asyncio.timeout(LET_GO_S):
                await self.link(self._queue.beat(self.card()))
        await asyncio.wait(
            {idle, hurry, *upkeep}, timeout=self.settings.drain_s, return_when=asyncio.FIRST_COMPLETED
        )
        idle.cancel()
        hurry.cancel()

    async def _wait_until_idle(self, intake: list[asyncio.Task[Any]]) -> None:
        await asyncio.wait(intake)  # a claim may be on its way
        with suppress(QueueUnavailable):
            await self.hands.return_window()
        await self.hands.wait_until_empty()

    async def _end(self, intake: list[asyncio.Task[Any]], upkeep: list[asyncio.Task[Any]]) -> None:
        """Break off what still runs, hand it back, and send what consumers are to know."""
        engine_lost = self._engine.died.is_set() or self.hands.engine_died or _engine_hung(upkeep)
        self.intake.close()
        self._ending(ENDING_S)
        if engine_lost:
            self._telemetry.tell("engine.died")
        await asyncio.wait(intake, timeout=LET_GO_S)
        self.hands.stop_all(Stop.ENGINE_DIED if engine_lost else Stop.HAND_BACK)
        await self.hands.let_go(LET_GO_S)
        await self.publisher.flush(LET_GO_S)

    def _raise_defect(self, loops: list[asyncio.Task[Any]]) -> None:
        """A loop that ended by itself is the reason why the worker ends, unless a drain was."""
        if self.hands.defect is not None:
            raise self.hands.defect
        if self._engine.died.is_set() or self.hands.engine_died:
            raise EngineDied("the engine died; its jobs are offered again")
        for task in loops:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    def _enter(self, phase: str) -> None:
        now = time.monotonic()
        self._telemetry.tell("phase.changed", phase=phase, before=self.phase, seconds=now - self._phase_since)
        self.phase, self._phase_since = phase, now


def _engine_hung(loops: list[asyncio.Task[Any]]) -> bool:
    ended = (task for task in loops if task.done() and not task.cancelled())
    return any(isinstance(task.exception(), EngineDied) for task in ended)

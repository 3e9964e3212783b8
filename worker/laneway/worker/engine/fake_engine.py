"""An engine without a model: the port's whole behaviour, a predictable answer, and faults on demand.

It batches as vLLM does: seats, a token budget per step, prompts in chunks, priorities, KV space and adapter slots.
Time passes through an injected `sleep`, so that a simulation may run it on a clock of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

from msgspec import Struct

from laneway.schemas.ids import AdapterId
from laneway.schemas.job import Job
from laneway.worker.engine.checks import extended
from laneway.worker.engine.fake_prepare import prepare
from laneway.worker.engine.fake_run import FakeRun
from laneway.worker.errors import AttemptFailed, EngineDied, JobRefused
from laneway.worker.ports import Adapter, EngineInfo, EngineStats, Piece, Prepared, Progress, StepSums

FAULT = "fake"
"""Metadata key by which a job asks for a fault at its first step: `die` and `hang` hit the whole engine, `refuse` and
`fail` the job."""


class FakeEngineSettings(Struct, frozen=True, kw_only=True):
    """How big the fake engine is, and how long its steps take: `base + prefill * tokens + decode * sequences`."""

    model: str = "fake"
    seats: int = 16
    step_tokens: int = 512
    kv_tokens: int = 65_536
    context_tokens: int = 4096
    vocabulary: int = 32_000
    max_loras: int = 4
    answer_tokens: int = 64
    """Length of an answer whose job sets no `max_tokens`; it ends with `stop`."""
    start_s: float = 0.0
    base_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0


class FakeEngine:
    """An `Engine` in this process. Beyond the port: `die`, `hang`, `resume`, `refuse_next` and `fail_next`."""

    def __init__(
        self,
        settings: FakeEngineSettings | None = None,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Nothing runs before `start`. `sleep` is called once per step, with its cost in seconds."""
        self.settings = settings or FakeEngineSettings()
        self._sleep = sleep
        self._died = asyncio.Event()
        self._runs: dict[str, FakeRun] = {}
        self._adapters: dict[AdapterId, Adapter] = {}
        self._work = asyncio.Event()
        self._awake = asyncio.Event()
        self._awake.set()
        self._loop: asyncio.Task[None] | None = None
        self._gone: str | None = "the engine has not been started"
        self._next: list[Exception] = []
        self._order = 0
        self._steps = 0
        self._generated = 0
        self._timed = StepSums()

    @property
    def info(self) -> EngineInfo:
        """What came up."""
        it = self.settings
        return EngineInfo(
            model=it.model,
            version="fake",
            context_tokens=it.context_tokens,
            vocabulary=it.vocabulary,
            seats=it.seats,
            step_tokens=it.step_tokens,
            kv_tokens=it.kv_tokens,
            max_loras=it.max_loras,
        )

    @property
    def died(self) -> asyncio.Event:
        """Set, for ever, once the engine died."""
        return self._died

    async def start(self, progress: Progress) -> EngineInfo:
        """Bring the engine up, in `start_s` seconds."""
        progress("engine", 0.0)
        await self._sleep(self.settings.start_s)
        self._gone = None
        self._loop = asyncio.create_task(self._run_steps(), name="fake engine")
        progress("engine", 1.0)
        return self.info

    async def stop(self) -> None:
        """End the engine; whatever runs ends with `EngineDied`."""
        self._end("the engine was stopped")
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.wait([self._loop])
            self._loop = None

    async def prepare(self, job: Job) -> Prepared:
        """Check and tokenise. Raises `JobRefused` for what a real engine would refuse."""
        return prepare(job, self.info, self.settings.answer_tokens)

    def extend(self, prepared: Prepared, generated: Sequence[int]) -> Prepared:
        """Go on from tokens that the answer has already."""
        return extended(prepared, generated)

    async def generate(self, run: str, prepared: Prepared, priority: int) -> AsyncIterator[Sequence[Piece]]:
        """Run a prepared job; one item per step that added to it."""
        if self._gone is not None:
            raise EngineDied(self._gone)
        if self._next:
            raise self._next.pop(0)
        if run in self._runs:
            raise AttemptFailed("a run of that name is in the engine")
        self._order += 1
        mine = self._runs[run] = FakeRun(prepared, self._adapter_of(prepared.job), priority, self._order)
        self._work.set()
        try:
            while not (mine.over and mine.out.empty()):
                item = await mine.out.get()
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            if self._runs.get(run) is mine:
                self._drop(run)

    async def abort(self, run: str) -> None:
        """Stop a run: its answers end with `abort`. Unknown names are ignored."""
        if (mine := self._runs.get(run)) is not None:
            mine.abort()
            self._drop(run)

    async def load_adapter(self, adapter: Adapter) -> None:
        """Make an adapter usable. Its files are not looked at."""
        if not self.settings.max_loras:
            raise JobRefused("adapters_off", "lora: this engine runs without adapters", "lora")
        self._adapters[adapter.id] = adapter

    def stats(self) -> EngineStats:
        """The engine's account of itself."""
        running = [run for run in self._runs.values() if run.admitted]
        return EngineStats(
            running=sum(run.seats for run in running),
            waiting=len(self._runs) - len(running),
            kv_usage=sum(run.kv_tokens for run in running) / self.settings.kv_tokens,
            steps=self._steps,
            generated_tokens=self._generated,
            timed=self._timed,
        )

    # --- faults -----------------------------------------------------------------

    def die(self) -> None:
        """The engine is gone, and every run in it with it."""
        self._end("the engine died")
        self._died.set()

    def hang(self) -> None:
        """No further step until `resume`. Nothing tells but the steps that stand still."""
        self._awake.clear()

    def resume(self) -> None:
        """Go on after `hang`."""
        self._awake.set()

    def refuse_next(self, code: str = "refused", message: str = "the engine refused the job") -> None:
        """The next run is refused for good."""
        self._next.append(JobRefused(code, message))

    def fail_next(self, message: str = "the attempt broke") -> None:
        """The next run fails, through no fault of its job."""
        self._next.append(AttemptFailed(message))

    # --- the steps --------------------------------------------------------------

    async def _run_steps(self) -> None:
        while self._gone is None:
            await self._work.wait()
            await self._awake.wait()
            plan = self._plan()
            if self._gone is not None or not self._awake.is_set():
                continue
            prefill = sum(tokens for run, tokens in plan if run.in_prompt)
            decodes = sum(tokens for run, tokens in plan if not run.in_prompt)
            it = self.settings
            seconds = it.base_s + it.prefill_s * prefill + it.decode_s * decodes
            await self._sleep(seconds)
            if self._gone is None:
                self._compute(plan)
                self._count(seconds, prefill, decodes)

    def _plan(self) -> list[tuple[FakeRun, int]]:
        """Tokens of this step: running answers first, then prompts in order of priority, as far as the budget goes."""
        budget = self.settings.step_tokens
        plan: list[tuple[FakeRun, int]] = []
        ordered = sorted(self._runs.values(), key=lambda run: run.rank)
        running = [run for run in ordered if run.admitted]
        for run in running:
            if (tokens := min(run.wants, budget)) > 0:
                plan.append((run, tokens))
                budget -= tokens
        for run in ordered:
            if not run.admitted and budget > 0 and self._fits(run, running) and not self._misbehaves(run):
                run.admitted = True
                running.append(run)
                tokens = min(run.wants, budget)
                plan.append((run, tokens))
                budget -= tokens
        return plan

    def _fits(self, run: FakeRun, running: Iterable[FakeRun]) -> bool:
        it = self.settings
        seats, kv_tokens = 0, 0
        adapters = {run.adapter} if run.adapter else set()
        for other in running:
            seats += other.seats
            kv_tokens += other.kv_tokens
            adapters |= {other.adapter} if other.adapter else set()
        return (
            seats + min(run.seats, it.seats) <= it.seats
            and kv_tokens + min(run.kv_tokens, it.kv_tokens) <= it.kv_tokens
            and len(adapters) <= max(1, it.max_loras)
        )

    def _misbehaves(self, run: FakeRun) -> bool:
        """Carry out the fault that the job asks for, if any, the first time it would run."""
        match run.fault:
            case "die":
                self.die()
            case "hang":
                run.fault = ""
                self.hang()
            case "refuse":
                run.fail(JobRefused("refused", "the engine refused the job"))
            case "fail":
                run.fail(AttemptFailed("the attempt broke"))
            case _:
                return False
        return True

    def _count(self, seconds: float, prefill: int, decodes: int) -> None:
        sums = self._timed
        self._timed = StepSums(
            steps=sums.steps + 1,
            seconds=sums.seconds + seconds,
            prefill=sums.prefill + prefill,
            decodes=sums.decodes + decodes,
            kv_usage=sums.kv_usage + self.stats().kv_usage,
        )

    def _compute(self, plan: Sequence[tuple[FakeRun, int]]) -> None:
        self._steps += 1
        for run, tokens in plan:
            if not run.over:
                self._generated += run.step(tokens)
        for name in [name for name, run in self._runs.items() if run.over]:
            self._drop(name)

    def _drop(self, name: str) -> None:
        del self._runs[name]
        if not self._runs:
            self._work.clear()

    def _end(self, why: str) -> None:
        self._gone = self._gone or why
        for run in self._runs.values():
            run.fail(EngineDied(why))
        self._work.set()
        self._awake.set()

    def _adapter_of(self, job: Job) -> str:
        if job.lora is None:
            return ""
        if (adapter := self._adapters.get(job.lora)) is None:
            raise JobRefused("unknown_adapter", "lora: the engine has no adapter of that name", "lora")
        return adapter.digest or adapter.id

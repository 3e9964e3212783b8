"""The `Engine` on vLLM. vLLM's own engine is a process beside this one; nothing here imports it before `start`."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import resource_tracker
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from laneway.schemas.ids import AdapterId
from laneway.schemas.job import Job
from laneway.worker.engine.guard import Guard
from laneway.worker.engine.model_folder import resolve_model
from laneway.worker.engine.slo import check, first_controls, offering
from laneway.worker.engine.slo_page import Page
from laneway.worker.engine.tensors import folder_shapes
from laneway.worker.engine.vllm_adapters import VllmAdapters
from laneway.worker.engine.vllm_args import VllmSettings, set_environment
from laneway.worker.engine.vllm_output import Seam, pieces
from laneway.worker.engine.vllm_prepare import Preparer
from laneway.worker.engine.vllm_stats import StatsKeeper
from laneway.worker.errors import AttemptFailed, EngineDied, EngineStartFailed, JobRefused
from laneway.worker.ports import Adapter, EngineInfo, EngineStats, Piece, Prepared, Progress

T = TypeVar("T")

WATCH_S = 0.25
"""How often the engine process is looked at: its death is known within this and vLLM's own second."""
ORDERLY_S = 8.0
"""What the engine's own clean-up may take before its processes are killed."""

GRAMMAR_S = 10.0
"""What a constraint may take to compile, its place in the line included. Ordinary schemas take milliseconds."""


class VllmEngine:
    """vLLM's `AsyncLLM` behind the port."""

    def __init__(self, settings: VllmSettings) -> None:
        """Nothing is imported or started yet."""
        self._settings = settings
        self._died = asyncio.Event()
        self._guard = Guard()
        self._stats = StatsKeeper()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="tokenise")
        self._compilers = ThreadPoolExecutor(2, thread_name_prefix="compile")
        self._llm: Any = None
        self._native: ModuleType
        self._info: EngineInfo
        self._preparer: Preparer
        self._adapters: VllmAdapters
        self._runs: set[str] = set()
        self._entering: dict[str, asyncio.Future[tuple[Adapter, Any]]] = {}
        self._watch: asyncio.Task[None] | None = None
        self._starting: threading.Thread | None = None
        self._ended = False
        self.page = Page.create(first_controls(settings.tpot_ms)) if settings.scheduler == "slo" else None

    @property
    def info(self) -> EngineInfo:
        """What came up."""
        return self._info

    @property
    def died(self) -> asyncio.Event:
        """Set, for ever, once the engine process is known to be dead."""
        return self._died

    # --- life -------------------------------------------------------------------

    async def start(self, progress: Progress) -> EngineInfo:
        """Import vLLM and bring its engine up, in a thread."""
        loop = asyncio.get_running_loop()
        self._guard.start()

        def tell(phase: str, share: float) -> None:
            loop.call_soon_threadsafe(progress, phase, share)

        self._native, self._llm = await self._in_thread(lambda: self._build(loop, tell))
        native, llm = self._native, self._llm
        self._info = native.info(llm, self._settings)
        check(self.page)
        self._preparer = await asyncio.to_thread(
            Preparer,
            native.tokenizer(llm),
            self._info,
            lambda job, room: native.sampling_params(llm, job, room),
        )
        rank, held = native.lora_limits(llm)
        self._adapters = VllmAdapters(
            llm,
            native,
            slots=self._info.max_loras,
            held=held,
            max_rank=rank,
            model=await asyncio.to_thread(folder_shapes, Path(llm.vllm_config.model_config.model)),
            call=self._call,
        )
        self._watch = asyncio.create_task(self._watch_engine(), name="watch vLLM")
        progress("engine", 1.0)
        return self._info

    def _build(self, loop: asyncio.AbstractEventLoop, tell: Progress) -> tuple[ModuleType, Any]:
        """In the starting thread. Signals for the worker's group are kept from the engine, which would end at once."""
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
        set_environment()
        with self._guard.marking(), offering(self.page):
            tell("model", 0.0)
            model = resolve_model(self._settings.model, self._settings.args)
            tell("import", 0.0)
            try:
                from laneway.worker.engine import vllm_native as native
            except ImportError as error:
                raise EngineStartFailed(f"vLLM cannot be imported: {error}") from None
            native.quiet()
            tell("engine", 0.0)
            return native, native.build(self._settings, model, self._stats.record)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """`work` in a thread of its own, whose signal mask it may change. Not waited for when cancelled."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def settle(result: Any, error: BaseException | None) -> None:
            if not done.done():
                done.set_exception(error) if error else done.set_result(result)

        def run() -> None:
            result, error = None, None
            try:
                result = work()
            except BaseException as raised:
                error = raised
            with suppress(RuntimeError):  # the loop may be closed by now
                loop.call_soon_threadsafe(settle, result, error)

        self._starting = threading.Thread(target=run, name="start vLLM", daemon=True)
        self._starting.start()
        return await done

    async def stop(self) -> None:
        """End the engine, its processes, and whatever still runs in it."""
        self._ended = True
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        llm, self._llm = self._llm, None
        if llm is not None and not llm.errored:
            self._fail_runs(llm)
            with suppress(Exception):
                # Worker processes end in order and give their shared memory back; the rest is killed.
                async with asyncio.timeout(ORDERLY_S):
                    await llm.engine_core.call_utility_async("shutdown")
        processes = self._guard.processes()
        left = await asyncio.to_thread(self._guard.kill)
        if llm is not None:
            with suppress(Exception):
                llm.shutdown(timeout=0)
        if self._starting is not None:
            await asyncio.to_thread(self._starting.join, ORDERLY_S)
        for child in multiprocessing.active_children():
            if child.pid in processes:  # killed, but its memory is given back only when it is reaped
                await asyncio.to_thread(child.join, ORDERLY_S)
        self._guard.stop()
        if self.page is not None:
            self.page.close()
        for threads in (self._worker, self._compilers):
            threads.shutdown(wait=False, cancel_futures=True)
        if left:
            raise EngineDied(f"engine processes {left} cannot be killed")

    async def _watch_engine(self) -> None:
        while not self._llm.errored:  # noqa: ASYNC110 - vLLM offers nothing to wait for
            await asyncio.sleep(WATCH_S)
        self._died.set()
        self._fail_runs(self._llm)

    def _fail_runs(self, llm: Any) -> None:
        with suppress(Exception):
            llm.output_processor.propagate_error(self._native.dead_error())

    # --- jobs -------------------------------------------------------------------

    async def prepare(self, job: Job) -> Prepared:
        """Check and tokenise in a thread. Constraints are compiled in others, and not for ever."""
        loop = asyncio.get_running_loop()
        if job.sampling.structured_outputs is None:
            return await loop.run_in_executor(self._worker, self._preparer.prepare, job)
        try:
            async with asyncio.timeout(GRAMMAR_S):
                return await loop.run_in_executor(self._compilers, self._preparer.prepare, job)
        except TimeoutError:
            raise JobRefused(
                "constraint_too_slow",
                f"sampling.structured_outputs: expected one that compiles within {GRAMMAR_S:g} s",
                "sampling.structured_outputs",
            ) from None

    def extend(self, prepared: Prepared, generated: Sequence[int]) -> Prepared:
        """Go on from tokens that the answer has already."""
        return self._preparer.extend(prepared, generated)

    async def generate(self, run: str, prepared: Prepared, priority: int) -> AsyncIterator[Sequence[Piece]]:
        """Run a prepared job; one item per engine output."""
        self._check_alive()
        if run in self._runs:
            raise AttemptFailed("a run of that name is in the engine")
        self._stats.began(alone=not self._runs)
        self._runs.add(run)
        adapter, request = None, None
        try:
            if prepared.job.lora is not None:
                adapter, request = await self._enter(run, prepared.job.lora)
            async for output in self._outputs(run, prepared, priority, request):
                yield output
        except _Aborted:
            yield tuple(Piece(index=i, finish_reason="abort") for i in range(prepared.job.sampling.n))
        finally:
            if adapter is not None:
                self._adapters.leave(adapter)
            self._runs.discard(run)

    async def _enter(self, run: str, lora: AdapterId) -> tuple[Adapter, Any]:
        """The adapter, in a slot. `abort` reaches a run that waits for one."""
        entering = self._entering[run] = asyncio.ensure_future(self._adapters.enter(lora))
        try:
            await asyncio.wait({entering})
        except asyncio.CancelledError:
            if not entering.cancel() and not entering.cancelled() and entering.exception() is None:
                self._adapters.leave(entering.result()[0])
            raise
        finally:
            del self._entering[run]
        if entering.cancelled():
            raise _Aborted
        return entering.result()

    async def _outputs(
        self, run: str, prepared: Prepared, priority: int, request: Any
    ) -> AsyncIterator[Sequence[Piece]]:
        stream = self._llm.generate(
            self._native.prompt(prepared.prompt_token_ids),
            prepared.native,
            run,
            lora_request=request,
            priority=priority,
        )
        open_answers = prepared.job.sampling.n
        seam = Seam(self._native.detokenizer(self._llm, prepared), prepared) if prepared.generated else None
        try:
            async for output in stream:
                made = pieces(output) if seam is None else seam.mend(pieces(output))
                open_answers -= sum(piece.finish_reason is not None for piece in made)
                yield made
                if not open_answers:
                    break
        except (GeneratorExit, asyncio.CancelledError):
            raise
        except BaseException as error:
            self._check_alive()
            raise self._native.blame(error) from None
        finally:
            await stream.aclose()

    async def abort(self, run: str) -> None:
        """Stop a run; its answers end with `abort`."""
        if (entering := self._entering.get(run)) is not None:
            entering.cancel()
        elif run in self._runs and not self._died.is_set() and self._llm is not None:
            await self._call(self._llm.abort(run))

    async def load_adapter(self, adapter: Adapter) -> None:
        """Check the files, then load."""
        self._check_alive()
        await self._adapters.load(adapter)

    def stats(self) -> EngineStats:
        """What vLLM said of its last step."""
        return self._stats.stats()

    # --- inside -----------------------------------------------------------------

    def _check_alive(self) -> None:
        if self._ended or self._llm is None:
            raise EngineDied("the engine was stopped")
        if self._llm.errored:
            self._died.set()
            raise EngineDied(self._native.DEAD)

    async def _call(self, call: Awaitable[T]) -> T:
        """Await a call into the engine process; it never answers once that is dead."""
        answer = asyncio.ensure_future(call)
        death = asyncio.ensure_future(self._died.wait())
        try:
            await asyncio.wait({answer, death}, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            raise EngineDied(self._native.DEAD)
        except self._native.EngineDeadError:
            raise EngineDied(self._native.DEAD) from None
        finally:
            answer.cancel()
            death.cancel()


class _Aborted(Exception):
    """A run was aborted before vLLM knew it."""

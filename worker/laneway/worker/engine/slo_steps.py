"""The second level beside vLLM's scheduler: reads the scene before each step, carries out the orders, undoes them.

Runs in the engine process. Everything it needs of vLLM is asked for by name in `unfit`, once, at the start.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from msgspec import Struct

from laneway.worker.engine.slo_page import Controls, Page, Report
from laneway.worker.policy import cost
from laneway.worker.policy.budget import FLOOR, FLOOR_CPU, MARGIN_STEPWISE, BudgetRule, Haste
from laneway.worker.policy.steps import (
    BACK_OFF,
    LEAD_START_S,
    PAUSES_IN_A_ROW,
    THROUGHPUT,
    Orders,
    Scene,
    next_lead,
    orders,
)

LEARN_STEPS = 64
"""Steps before the cost model is believed; then it is solved again after as many."""
READY = ("WAITING", "PREEMPTED")
"""States of a waiting job that the next step can take up."""
LIMITS = ("max_num_running_reqs", "max_num_active_reqs")
"""Seats, as vLLM's scheduler counts them: 0.26 knows only the first."""


class _Step(Struct):
    """A step that was scheduled and is not finished."""

    output: Any
    at: float
    load: cost.StepLoad
    seconds: float
    """Predicted."""


class SecondLevel:
    """Orders for one scheduler, step by step."""

    def __init__(
        self, scheduler: Any, page: Page | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._scheduler = scheduler
        self._page = page
        self._clock = clock
        self._most = int(scheduler.max_num_scheduled_tokens)
        self._threshold = int(scheduler.scheduler_config.long_prefill_token_threshold)
        self._floor = FLOOR_CPU if device(scheduler) == "cpu" else FLOOR
        self._evidence = cost.Evidence()
        self._model: cost.CostModel | None = None
        self._flying: deque[_Step] = deque()
        self._free_at = 0.0
        self._done_at = 0.0
        self._end_seen: float | None = None
        self._last_latency = -math.inf
        self._paused_in_row = 0
        self._back_off = 0
        self._orders: Orders | None = None
        self._wanted: set[str] = set()
        self._hid = False
        self._controls = Controls()
        self._lead_s = LEAD_START_S
        self._counts = dict.fromkeys(("steps", "reading", "lean", "paused", "fruitless", "dry"), 0)
        self.reason = unfit(scheduler)
        """Why the engine's own scheduling is used; None: it is not."""
        self._tell()

    @contextmanager
    def around(self) -> Iterator[None]:
        """Around the engine's own scheduling of a step."""
        hidden: list[Any] = []
        if self.reason is None:
            try:
                hidden = self._begin()
            except Exception as error:  # whatever it is: the engine must go on
                self._give_up(error)
        try:
            yield
        finally:
            self._restore(hidden)

    def scheduled(self, output: Any) -> None:
        """After it: what the step computes."""
        if self.reason is not None:
            return
        try:
            self._note(output)
        except Exception as error:  # whatever it is: the engine must go on
            self._give_up(error)

    def finished(self, output: Any) -> None:
        """A step's results are there."""
        if self.reason is not None:
            return
        try:
            self._learn(output)
        except Exception as error:  # whatever it is: the engine must go on
            self._give_up(error)

    def spare_s(self) -> float:
        """Seconds for which the next step may still take in new jobs: the running one is not near its end."""
        if self.reason is not None or not self._controls.late or self._model is None or not self._flying:
            return 0.0
        now = self._clock()
        if now - self._last_latency >= self._controls.linger_s:
            return 0.0
        return max(0.0, self._free_at - self._lead_s - now)

    def judge(self, *, dry: bool) -> None:
        """A step reached the device; `dry`: after that had finished everything before."""
        self._counts["dry"] += dry
        self._lead_s = next_lead(self._lead_s, dry=dry)

    def see_end(self) -> None:
        """The running step is over, though nobody has asked for its results yet."""
        self._end_seen = self._clock()

    # --- before a step ------------------------------------------------------------

    def _begin(self) -> list[Any]:
        self._orders, self._hid = None, False
        controls = self._controls = self._page.controls() if self._page is not None else Controls()
        if not controls.enabled:
            return []
        running = self._scheduler.running
        latency = [job for job in running if job.priority < THROUGHPUT]
        waiting = waiting_latency(self._scheduler.waiting)
        now = self._clock()
        if latency or waiting:
            self._last_latency = now
        elif now - self._last_latency >= controls.linger_s:
            return []
        running.sort(key=_rank)
        waiting = self._admissible(waiting)
        prompts = [job for job in running if job.priority >= THROUGHPUT and job.is_prefill_chunk]
        scene = self._scene(latency, waiting, prompts, now)
        self._orders = found = self._decide(scene)
        hidden = self._hidden(found, prompts)
        if hidden and not self._safe(running, scene):
            self._orders = found = self._decide(scene, may_wait=False)
            hidden = []
        self._wanted = {job.request_id for job in (*latency, *waiting) if left(job) > 1}
        self._hid = bool(hidden)
        self._carry_out(found, hidden)
        return hidden

    def _admissible(self, waiting: list[Any]) -> list[Any]:
        """Those that find a seat, first come first."""
        limit = min(getattr(self._scheduler, name, 1 << 30) for name in LIMITS)
        ready = sorted((job for job in waiting if job.status.name in READY), key=_rank)
        return ready[: max(0, limit - len(self._scheduler.running))]

    def _scene(self, latency: list[Any], waiting: list[Any], prompts: list[Any], now: float) -> Scene:
        reading = [job for job in latency if not job.is_prefill_chunk]
        late = [job for job in latency if job.is_prefill_chunk] + waiting
        throughput = [
            job for job in self._scheduler.running if job.priority >= THROUGHPUT and not job.is_prefill_chunk
        ]
        slack = 0.0
        if late:
            due = min(job.arrival_time for job in late) + self._controls.ttft_s
            slack = due - time.time() - max(0.0, self._free_at - now if self._flying else 0.0)
        latency_kv = sum(job.num_computed_tokens for job in reading)
        return Scene(
            latency_prompts=[left(job) for job in late],
            slack_s=slack if self._controls.pause < 2 else -1e9,
            latency_decodes=len(reading),
            decodes=len(reading) + len(throughput),
            kv=latency_kv + sum(job.num_computed_tokens for job in throughput),
            latency_kv=latency_kv,
            prompts=[left(job) for job in prompts],
            reading=True,
        )

    def _decide(self, scene: Scene, *, may_wait: bool = True) -> Orders:
        may_wait = may_wait and not self._back_off
        self._back_off = max(0, self._back_off - 1)
        controls = self._controls
        rule = BudgetRule(
            most=self._most,
            tpot_s=controls.tpot_s,
            floor=int(controls.floor) or self._floor,
            margin=MARGIN_STEPWISE,
            fixed=int(controls.fixed_tokens) or None,
        )
        return orders(
            self._model,
            rule,
            scene,
            may_pause=may_wait and controls.pause > 0 and self._paused_in_row < PAUSES_IN_A_ROW,
            may_wait=may_wait,
            least=Haste.LEAN if controls.lean > 1 else Haste.NONE,
        )

    def _hidden(self, found: Orders, prompts: list[Any]) -> list[Any]:
        """Who sits the step out."""
        if not found.decodes:
            return [job for job in self._scheduler.running if job.priority >= THROUGHPUT]
        return prompts[found.prompts :]

    def _safe(self, running: list[Any], scene: Scene) -> bool:
        """Whether somebody may sit out: nobody is pushed out of the cache for it, and no adapter slot is taken twice."""
        scheduler = self._scheduler
        block = scheduler.block_size
        need = len(running) + sum(-(-tokens // block) + 1 for tokens in scene.latency_prompts)
        if scheduler.kv_cache_manager.block_pool.get_num_free_blocks() < need:
            return False
        if scheduler.lora_config is None:
            return True
        jobs = [*running, *everybody(scheduler.waiting)]
        adapters = {job.lora_request.lora_int_id for job in jobs if job.lora_request}
        return len(adapters) <= int(scheduler.lora_config.max_loras)

    def _carry_out(self, found: Orders, hidden: list[Any]) -> None:
        scheduler = self._scheduler
        scheduler.max_num_scheduled_tokens = found.tokens
        scheduler.scheduler_config.long_prefill_token_threshold = found.cap or self._threshold
        if not hidden:
            return
        out = {id(job) for job in hidden}
        scheduler.running[:] = [job for job in scheduler.running if id(job) not in out]
        for name in LIMITS:
            if hasattr(scheduler, name):
                setattr(scheduler, name, getattr(scheduler, name) - len(hidden))

    def _restore(self, hidden: list[Any]) -> None:
        """Undo `_carry_out`. Jobs that sat out come last: the next step sorts them again."""
        scheduler = self._scheduler
        scheduler.max_num_scheduled_tokens = self._most
        scheduler.scheduler_config.long_prefill_token_threshold = self._threshold
        if hidden:
            scheduler.running.extend(hidden)
            for name in LIMITS:
                if hasattr(scheduler, name):
                    setattr(scheduler, name, getattr(scheduler, name) + len(hidden))

    # --- after it -------------------------------------------------------------------

    def _note(self, output: Any) -> None:
        """Keep what the step computes, and judge whether it was worth what it cost."""
        computed: dict[str, int] = output.num_scheduled_tokens
        jobs = self._scheduler.requests
        prefill = sum(tokens for tokens in computed.values() if tokens > 1)
        decoding = [jobs[name].num_computed_tokens for name, tokens in computed.items() if tokens == 1]
        load = cost.StepLoad(prefill, len(decoding), sum(decoding))
        now = self._clock()
        seconds = (
            self._model.step_s(load.prefill, load.decodes, load.kv)
            if self._model is not None and computed
            else 0.0
        )
        self._free_at = max(now, self._free_at if self._flying else now) + seconds
        if computed:
            self._flying.append(_Step(output, now, load, seconds))
        found = self._orders
        self._counts["steps"] += 1
        if found is not None:
            self._count(found, computed)
        self._tell()

    def _count(self, found: Orders, computed: dict[str, int]) -> None:
        paused = not found.decodes and self._hid
        self._paused_in_row = self._paused_in_row + 1 if paused else 0
        self._counts["reading"] += 1
        self._counts["paused"] += paused
        self._counts["lean"] += found.haste is Haste.LEAN
        if self._hid and not self._wanted & computed.keys():
            self._counts["fruitless"] += 1
            self._back_off = BACK_OFF

    def _learn(self, output: Any) -> None:
        """The step took from the later of its own scheduling and its predecessor's end until now."""
        step = None
        while self._flying and (step is None or step.output is not output):
            step = self._flying.popleft()
        if step is None or step.output is not output:
            return
        now, self._end_seen = self._end_seen or self._clock(), None
        seconds, self._done_at = now - max(step.at, self._done_at), now
        current = self._model or _FIRST_GUESS
        cost.observe(self._evidence, current, step.load, seconds)
        if self._evidence.samples % LEARN_STEPS == 0:
            if self._model is None:
                self._evidence.error = 0.0  # nothing was predicted yet
            self._model = cost.solve(self._evidence)
        self._free_at = now + sum(later.seconds for later in self._flying)

    # --- telling ----------------------------------------------------------------------

    def _give_up(self, error: Exception) -> None:
        self.reason = f"{type(error).__name__} in the second level"
        _log.warning("second level of scheduling is off: %s; the engine's own goes on", self.reason)
        self._tell()

    def _tell(self) -> None:
        if self._page is None:
            return
        model = self._model or _FIRST_GUESS
        self._page.report(
            Report(
                alive=-1.0 if self.reason is not None else 1.0,
                **{name: float(count) for name, count in self._counts.items()},
                base_s=model.base_s,
                prefill_s=model.prefill_s,
                decode_s=model.decode_s,
                kv_s=model.kv_s,
                error=self._evidence.error,
                tokens=float(self._orders.tokens if self._orders is not None else self._most),
                lead_s=self._lead_s,
            )
        )


_FIRST_GUESS = cost.CostModel(base_s=0, prefill_s=0, decode_s=0, kv_s=0)
_log = logging.getLogger("laneway.worker.engine")


def unfit(scheduler: Any) -> str | None:
    """Why the second level cannot work with this scheduler; None: it can."""
    for path in _NEEDED:
        found = scheduler
        for name in path.split("."):
            if not hasattr(found, name):
                return f"this vLLM's scheduler has no {path}"
            found = getattr(found, name)
    if scheduler.connector is not None:
        return "KV connectors are not supported"
    if scheduler.num_spec_tokens:
        return "speculative decoding is not supported"
    if scheduler.parallel_config.pipeline_parallel_size > 1:
        return "pipeline parallelism is not supported"
    return None


_NEEDED = (
    "running", "waiting", "requests", "max_num_running_reqs", "max_num_scheduled_tokens",
    "scheduler_config.long_prefill_token_threshold", "scheduler_config.enable_chunked_prefill",
    "kv_cache_manager.block_pool.get_num_free_blocks",
    "block_size", "lora_config", "connector", "num_spec_tokens", "parallel_config.pipeline_parallel_size",
)  # fmt: skip


def device(scheduler: Any) -> str:
    """What the engine runs on, as vLLM calls it; empty where it does not say."""
    config = getattr(getattr(scheduler, "vllm_config", None), "device_config", None)
    return str(getattr(config, "device_type", ""))


def waiting_latency(queue: Any) -> list[Any]:
    """The latency jobs of a waiting queue. The first of a priority queue tells whether there is any."""
    if not queue or (hasattr(queue, "_heap") and queue.peek_request().priority >= THROUGHPUT):
        return []
    return [job for job in everybody(queue) if job.priority < THROUGHPUT]


def everybody(queue: Any) -> Iterable[Any]:
    """All jobs of a waiting queue in any order: iterating over a priority queue would sort it."""
    jobs: Iterable[Any] = getattr(queue, "_heap", queue)
    return jobs


def left(job: Any) -> int:
    """Tokens of a job that are not computed: its prompt, and what it had generated when it was preempted."""
    tokens = job.num_tokens + job.num_output_placeholders - job.num_computed_tokens
    return max(0, int(tokens))


def _rank(job: Any) -> tuple[bool, bool, int, float]:
    """Latency jobs, then decodes, which take a token each, then prompts; first come first."""
    throughput = job.priority >= THROUGHPUT
    return throughput, throughput and job.is_prefill_chunk, job.priority, job.arrival_time

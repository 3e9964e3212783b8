"""An engine that schedules as vLLM's V1 scheduler does and takes as long as a cost model says.

Imitated: running jobs first in order of admission, then the waiting by arrival or by priority, a token budget per
step, chunked prefill with an optional cap, seats, KV tokens, at most `max_loras` adapters in a batch, preemption
(recompute) only when KV runs out, one step of look-ahead as in async scheduling, and no preemption for who waits.

A step hook stands for a `scheduler_cls`: it may set the step's budget, put latency prompts first, and pause throughput
jobs for a step; they keep their KV.

Simplified: KV is counted in tokens, not blocks; each decoding job gets its token even when the budget is smaller than
their number; answers end at their length, never earlier.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from random import Random

from msgspec import Struct, field

from laneway.worker.bench.sim.decoders import Decoders, Entry
from laneway.worker.bench.sim.jobs import SimJob
from laneway.worker.policy.cost import CostModel


class EngineSpec(Struct, frozen=True, kw_only=True):
    """What the engine is. Tokens and seconds."""

    model: CostModel
    seats: int
    step_tokens: int
    kv_tokens: int
    by_priority: bool = True
    """`scheduling_policy="priority"`, else `fcfs`."""
    long_prefill: int = 0
    """`long_prefill_token_threshold`; 0: none."""
    ahead: bool = True
    """Async scheduling: the next step is fixed when the present one begins."""
    reply_s: float = 0.0
    """From submission to the engine and from the token back: what a job pays beside the steps."""
    max_loras: int = 0
    load_s: float = 0.0
    """`add_lora` of an adapter that is not in a slot: the engine stands still."""
    lora_factor: float = 1.0
    """Steps with an adapter take so many times as long."""
    noise: float = 0.0
    """Standard deviation of a step's relative duration."""


class Limits(Struct, frozen=True):
    """What a step hook says about the step to be planned."""

    tokens: int
    """All tokens of the step."""
    cap: int = 0
    """Most tokens of one throughput prompt; 0: none."""
    latency_first: bool = False
    """Prompts of latency jobs before those that run already."""
    pause: bool = False
    """Throughput jobs get nothing in this step, and keep what they hold."""


class Batch(Struct):
    """One planned step."""

    ticks: tuple[Decoders, ...]
    """Classes that take part."""
    prefill: int = 0
    decodes: int = 0
    kv: int = 0
    first: list[Entry] = field(default_factory=list)
    """Jobs that get the first token of a run."""
    finish: list[Entry] = field(default_factory=list)
    seconds: float = 0.0


Hook = Callable[["Engine"], Limits]


class Engine:
    """The state of one engine. The world calls `start` and `finish`; policies call `submit` and `abort`."""

    def __init__(self, spec: EngineSpec, rng: Random, hook: Hook | None = None) -> None:
        self.spec = spec
        self.hook = hook
        self.running: dict[int, SimJob] = {}
        self.prefilling: list[SimJob] = []
        self.adapters: dict[str, int] = {}
        """Jobs per adapter among the running."""
        self.latency = Decoders()
        self.throughput = Decoders()
        self.kv_used = 0
        self.preemptions = 0
        self.executing: Batch | None = None
        self.end = math.inf
        """When the running step ends."""
        self.now = 0.0
        self._rng = rng
        self._waiting: list[tuple[int, int, SimJob]] = []
        self._order = 0
        self._prepared: Batch | None = None
        self._resident: dict[str, None] = {}
        self._stall = 0.0

    # --- what policies do ---------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Jobs submitted and not running."""
        return len(self._waiting)

    @property
    def decodes(self) -> int:
        """Sequences that decode."""
        return self.latency.count + self.throughput.count

    @property
    def decode_kv(self) -> int:
        """Context tokens that they attend to."""
        return self.latency.kv + self.throughput.kv

    def waiting_latency(self) -> list[SimJob]:
        """Latency jobs whose prompt is not computed yet."""
        seated = [job for job in self.prefilling if job.latency]
        return seated + [job for _, _, job in self._waiting[:64] if job.latency]

    def submit(self, job: SimJob, now: float, priority: int = 0) -> None:
        """Hand a job over; it waits inside the engine until a step takes it."""
        if job.admitted < 0:
            job.admitted = now
        job.priority = priority if self.spec.by_priority else 0
        job.context = job.prompt + job.generated
        job.computed = 0
        job.first_tick = -1
        self._order += 1
        heapq.heappush(self._waiting, (job.priority, self._order, job))

    def abort(self, job: SimJob) -> None:
        """Take a job out; the tokens it has are kept in `job.generated`."""
        if job.id in self.running:
            self._evict(job)
        else:
            self._waiting = [entry for entry in self._waiting if entry[2] is not job]
            heapq.heapify(self._waiting)

    def generated_of(self, job: SimJob) -> int:
        """Tokens that a job has by the last ended step."""
        return self._decoders(job).generated(job)

    def _decoders(self, job: SimJob) -> Decoders:
        return self.latency if job.latency else self.throughput

    # --- what the world does --------------------------------------------------------

    def start(self, now: float) -> None:
        """Begin a step if none runs and there is work; with look-ahead, also fix the next one."""
        self.now = now
        if self.executing is None:
            self.executing, self._prepared = self._prepared or self._plan(), None
            if self.executing is None:
                return
            self.end = now + self.executing.seconds
        if self.spec.ahead and self._prepared is None:
            self._prepared = self._plan()

    def finish(self, now: float) -> Batch:
        """The running step ends: first tokens appear, finished jobs free what they hold."""
        batch = self.executing
        assert batch is not None
        self.executing, self.end = None, math.inf
        for decoders in batch.ticks:
            decoders.ends.append(now)
        shown = now + self.spec.reply_s
        for job, run in batch.first:
            if job.run == run:
                if job.first < 0:
                    job.first = shown
                else:
                    job.worst_gap = max(job.worst_gap, shown - job.last)
                job.last = shown
        for job, run in batch.finish:
            if job.run == run:
                self._note_tokens(job, shown)
                self._free(job)
                job.generated = job.output
                job.ended = shown
        return batch

    # --- planning a step ------------------------------------------------------------

    def _plan(self) -> Batch | None:
        limits = self.hook(self) if self.hook else Limits(self.spec.step_tokens, self.spec.long_prefill)
        ticks = (self.latency,) if limits.pause else (self.latency, self.throughput)
        for decoders in ticks:
            decoders.settle()
        batch = Batch(ticks, decodes=sum(d.count for d in ticks), kv=sum(d.kv for d in ticks))
        may_admit = not self._make_room(batch)
        budget = max(0, limits.tokens - batch.decodes)
        self.kv_used += batch.decodes
        if limits.latency_first:
            budget = self._prefill_running(batch, budget, limits, latency_only=True)
            if may_admit:
                budget = self._admit(batch, budget, limits, latency_only=True)
        if not limits.pause:
            budget = self._prefill_running(batch, budget, limits)
            if may_admit:
                self._admit(batch, budget, limits)
        if not batch.prefill and not batch.decodes:
            return None
        for decoders in ticks:
            batch.finish += decoders.commit()
        batch.seconds = self._seconds(batch)
        return batch

    def _prefill_running(
        self, batch: Batch, budget: int, limits: Limits, *, latency_only: bool = False
    ) -> int:
        """Continue prompts that are partly computed, in order of admission."""
        for job in self.prefilling:
            if budget <= 0:
                break
            if job.latency or not latency_only:
                budget -= self._chunk(batch, job, budget, limits.cap)
        self.prefilling = [job for job in self.prefilling if job.computed < job.context]
        return budget

    def _chunk(self, batch: Batch, job: SimJob, budget: int, cap: int) -> int:
        tokens = min(job.context - job.computed, budget)
        if cap and not (self.hook and job.latency):
            tokens = min(tokens, cap)
        job.computed += tokens
        self.kv_used += tokens
        batch.prefill += tokens
        if job.computed == job.context:
            batch.first.append((job, job.run))
            self._decoders(job).join(job)
        return tokens

    def _admit(self, batch: Batch, budget: int, limits: Limits, *, latency_only: bool = False) -> int:
        """Seat waiting jobs while tokens, seats and KV last. A job that only lacks a slot is passed over."""
        skipped = []
        while self._waiting and budget > 0 and len(self.running) < self.spec.seats:
            job = self._waiting[0][2]
            if latency_only and not job.latency:
                break
            if not self._slot_free(job):
                skipped.append(heapq.heappop(self._waiting))
                continue
            if self.kv_used + self._unfinished_prompts() + job.context > self.spec.kv_tokens:
                break
            heapq.heappop(self._waiting)
            self._seat(job)
            budget -= self._chunk(batch, job, budget, limits.cap)
            if job.computed < job.context:
                self.prefilling.append(job)
        for entry in skipped:
            heapq.heappush(self._waiting, entry)
        return budget

    def _unfinished_prompts(self) -> int:
        return sum(job.context - job.computed for job in self.prefilling)

    def _slot_free(self, job: SimJob) -> bool:
        return job.adapter is None or job.adapter in self.adapters or len(self.adapters) < self.spec.max_loras

    def _seat(self, job: SimJob) -> None:
        self.running[job.id] = job
        if job.adapter is None:
            return
        self.adapters[job.adapter] = self.adapters.get(job.adapter, 0) + 1
        if job.adapter not in self._resident:
            self._stall += self.spec.load_s
            while len(self._resident) >= self.spec.max_loras:
                del self._resident[next(name for name in self._resident if not self._busy(name, job))]
        self._resident.pop(job.adapter, None)
        self._resident[job.adapter] = None

    def _busy(self, adapter: str, newcomer: SimJob) -> bool:
        return adapter in self.adapters and adapter != newcomer.adapter

    def is_resident(self, adapter: str) -> bool:
        """Whether the adapter is in one of the engine's slots."""
        return adapter in self._resident

    def _make_room(self, batch: Batch) -> bool:
        """Preempt until every decoding job has room for one more token beside the prompts that are partly computed;
        True when somebody had to go."""
        before = self.preemptions
        room = self.spec.kv_tokens
        while len(self.running) > 1 and self.kv_used + batch.decodes + self._unfinished_prompts() > room:
            if self.spec.by_priority:
                victim = max(self.running.values(), key=lambda job: (job.priority, job.arrival))
            else:
                victim = next(reversed(self.running.values()))
            self._evict(victim)
            self._order += 1
            heapq.heappush(self._waiting, (victim.priority, -self._order, victim))
            self.preemptions += 1
            batch.decodes = sum(d.count for d in batch.ticks)
            batch.kv = sum(d.kv for d in batch.ticks)
        return self.preemptions > before

    def _evict(self, job: SimJob) -> None:
        have = self.generated_of(job)
        self._free(job)
        if job.first_tick >= 0:
            self._note_tokens(job, job.last)
            self._decoders(job).forget(job)
        else:
            self.prefilling = [other for other in self.prefilling if other is not job]
        job.run += 1
        job.generated = have
        job.preempted += 1
        job.context, job.computed, job.first_tick = job.prompt + have, 0, -1

    def _free(self, job: SimJob) -> None:
        del self.running[job.id]
        self.kv_used -= job.computed + self._decoders(job).planned_decodes(job)
        if job.adapter is not None:
            self.adapters[job.adapter] -= 1
            if not self.adapters[job.adapter]:
                del self.adapters[job.adapter]

    def _note_tokens(self, job: SimJob, shown: float) -> None:
        """Widest gap between the tokens of this run so far."""
        times = self._decoders(job).token_times(job)
        if len(times) > 1:
            gaps = map(float.__sub__, times[1:], times)
            job.worst_gap = max(job.worst_gap, max(gaps))
            job.last = times[-1] + self.spec.reply_s
        else:
            job.last = max(job.last, shown)

    def _seconds(self, batch: Batch) -> float:
        seconds = self.spec.model.step_s(batch.prefill, batch.decodes, batch.kv)
        if self.adapters:
            seconds *= self.spec.lora_factor
        if self.spec.noise:
            seconds *= max(0.5, 1 + self._rng.gauss(0, self.spec.noise))
        seconds, self._stall = seconds + self._stall, 0.0
        return seconds

"""Laneway itself: `policy.planner` over a shared queue, and the second level as a hook into the engine's steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from msgspec import Struct

from laneway.schemas.ids import AdapterId
from laneway.worker.bench.sim.engine import Batch, Engine, Limits
from laneway.worker.bench.sim.jobs import SimJob
from laneway.worker.bench.sim.policies import HIGH, LOW
from laneway.worker.policy import cost, headroom, lengths, planner
from laneway.worker.policy.affinity import may_pull
from laneway.worker.policy.budget import (
    MARGIN,
    MARGIN_STEPWISE,
    BudgetRule,
    Haste,
    haste,
    long_prefill_cap,
    step_budget,
)
from laneway.worker.policy.headroom import Headroom
from laneway.worker.policy.lengths import Lengths
from laneway.worker.policy.order import Band, Candidate
from laneway.worker.policy.slots import Slots

WINDOW = 64
"""Throughput jobs that the queue shows at once, the oldest of each tenant and adapter."""
REFIT_STEPS = 50
"""Steps between two refits of the cost model: about every three seconds."""


class Options(Struct, frozen=True, kw_only=True):
    """What is switched on: the product has all of it, ablations leave one out."""

    level2: bool = True
    reserve: bool = True
    """Seats kept for latency jobs."""
    budget: bool = True
    """The step budget follows the TPOT target; else it is always the engine's own."""
    deadlines: bool = True
    """Earliest due first and relegation; else first come, first served."""
    cold: bool = True
    """Draining an adapter for one that waits."""
    fair: bool = True
    """Tenant counters; else all jobs are one tenant's."""
    late: bool = True
    """Late binding; else throughput work fills the engine's seats as they come."""
    haste: bool = True
    """The second level shortens steps, or pauses throughput jobs, when a latency prompt would be late."""
    feed_steps: float = 3.0
    """Two, and one more for the look-ahead of async scheduling."""
    fixed: int | None = None


class Worker:
    """One engine with its policy state."""

    def __init__(self, name: str, engine: Engine, options: Options, profile: cost.CostModel) -> None:
        spec = engine.spec
        self.name = name
        self.engine = engine
        self.options = options
        self.evidence = cost.Evidence(profile)
        rule = BudgetRule(
            most=spec.step_tokens,
            tpot_s=0.05 if options.budget else 1e3,
            fixed=options.fixed,
            margin=MARGIN_STEPWISE if options.level2 else MARGIN,
        )
        self.state = planner.State(
            headroom=Headroom(seats=spec.seats, kv_tokens=spec.kv_tokens),
            slots=Slots(most=spec.max_loras),
            model=profile,
            rule=rule,
            feed_steps=options.feed_steps if options.late else 1e6,
        )
        if options.level2:
            engine.hook = self.limits

    def learn(self, batch: Batch) -> None:
        """Refine the cost model by the step that ended."""
        load = cost.StepLoad(batch.prefill, batch.decodes, batch.kv)
        cost.observe(self.evidence, self.state.model, load, batch.seconds)
        if self.evidence.samples % REFIT_STEPS == 0:
            self.state.model = cost.solve(self.evidence)

    def limits(self, engine: Engine) -> Limits:
        """The second level: what the next step may compute, and who sits it out for a waiting latency job."""
        state = self.state
        waiting = engine.waiting_latency()
        need = sum(job.context - job.computed for job in waiting)
        decodes, kv = engine.decodes, engine.decode_kv
        hurry = Haste.NONE
        if waiting and self.options.haste:
            due = min(job.arrival + job.ttft_s for job in waiting) - engine.spec.reply_s
            begins = engine.now if engine.executing is None else engine.end
            hurry = haste(state.model, begins=begins, due=due, latency_prefill=need, decodes=decodes, kv=kv)
        budget = step_budget(
            state.model,
            state.rule,
            decodes=decodes,
            kv=kv,
            reading=need > 0 or state.headroom.latency_seats > 0,
            latency_prefill=need,
            haste=hurry,
        )
        prompts = sum(1 for job in engine.prefilling if not job.latency)
        cap = long_prefill_cap(budget.tokens, decodes=decodes, latency_prefill=need, prompts=prompts)
        return Limits(budget.tokens, cap, latency_first=True, pause=hurry is Haste.PAUSE)


class Laneway:
    """Workers that pull from one queue."""

    def __init__(self, engines: Sequence[Engine], options: Options, profile: cost.CostModel) -> None:
        self._options = options
        self._workers = [Worker(f"worker-{i}", e, options, profile) for i, e in enumerate(engines)]
        self._by_engine = {id(worker.engine): worker for worker in self._workers}
        self._latency: dict[int, SimJob] = {}
        self._throughput: dict[tuple[str, str | None], dict[int, SimJob]] = {}
        self._jobs: dict[str, SimJob] = {}
        self._known: dict[int, tuple[lengths.Estimate, Candidate]] = {}
        self._lengths = Lengths()
        self.waits: dict[str, int] = {}
        """How often each reason was given, over all plans."""

    # --- the world calls ------------------------------------------------------------

    def arrive(self, job: SimJob, now: float) -> None:
        """A latency job is offered to the workers, the one with the most room first. A throughput job waits for a
        step to end, unless an engine is idle."""
        self._jobs[str(job.id)] = job
        self._offer(job)
        for worker in sorted(self._workers, key=lambda w: -w.state.headroom.free):
            if job.admitted < 0 and (job.latency or not worker.engine.running):
                self._pump(worker, now)

    def stepped(self, engine: Engine, batch: Batch, now: float) -> None:
        """Books first, then the next plan."""
        worker = self._by_engine[id(engine)]
        worker.learn(batch)
        for job, run in batch.first:
            if job.run == run:
                headroom.first_token(worker.state.headroom, str(job.id))
        for job, run in batch.finish:
            if job.run == run:
                planner.left(worker.state, str(job.id), now, generated=job.output)
                lengths.record(self._lengths, self._kind(job), job.output)
        self._pump(worker, now)

    # --- the queue ---------------------------------------------------------------------

    def _kind(self, job: SimJob) -> lengths.Kind:
        return job.tenant, job.adapter, job.bucket

    def _candidate(self, job: SimJob) -> Candidate:
        due = job.arrival + job.ttft_s if job.latency else job.deadline
        guess = lengths.estimate(self._lengths, self._kind(job), job.max_tokens)
        known = self._known.get(job.id)
        if known is not None and (known[0] is guess or known[0] == guess):
            return known[1]
        candidate = self._describe(job, guess, due)
        self._known[job.id] = guess, candidate
        return candidate

    def _describe(self, job: SimJob, guess: lengths.Estimate, due: float | None) -> Candidate:
        return Candidate(
            id=str(job.id),
            slo=job.slo,
            bucket=job.bucket,
            prompt_tokens=job.prompt + job.generated,
            output_tokens=max(1, guess.mean - job.generated),
            most_tokens=max(1, guess.most - job.generated),
            least_tokens=max(1, guess.least - job.generated),
            since=job.arrival,
            due=due if self._options.deadlines or job.latency else None,
            tpot_s=job.tpot_s or None,
            tenant=job.tenant if self._options.fair else "default",
            adapter=job.adapter,
            preempted=job.preempted,
        )

    def _offer(self, job: SimJob) -> None:
        self._known.pop(job.id, None)
        line = self._latency if job.latency else self._throughput.setdefault((job.tenant, job.adapter), {})
        line[job.id] = job

    def _visible(self, worker: Worker, now: float) -> list[Candidate]:
        """All latency jobs, and the oldest throughput jobs of each tenant and adapter; expired ones are dropped."""
        may = self._puller(worker, now)
        shown = [self._candidate(job) for job in self._latency.values() if may(job)]
        lines = [line for line in self._throughput.values() if line]
        each = max(4, WINDOW // max(1, len(lines)))
        for line in lines:
            for job in list(islice(line.values(), each)):
                if job.deadline is not None and now > job.deadline:
                    del line[job.id]
                    job.expired = True
                elif may(job):
                    shown.append(self._candidate(job))
        return shown

    def _puller(self, worker: Worker, now: float) -> Callable[[SimJob], bool]:
        names = [w.name for w in self._workers]

        def may(job: SimJob) -> bool:
            return job.adapter is None or may_pull(
                worker.name,
                names,
                AdapterId(job.adapter),
                resident=worker.engine.is_resident(job.adapter),
                waited_s=now - job.arrival,
                latency=job.latency,
            )

        return may

    # --- plan and act ----------------------------------------------------------------------

    def _pump(self, worker: Worker, now: float) -> None:
        candidates = self._visible(worker, now)
        if not candidates:
            return
        state = worker.state
        self._ablate(worker)
        plan = planner.plan(state, now, candidates, kv_used=worker.engine.decode_kv)
        for admission in plan.admit:
            job = self._withdraw(admission.candidate)
            urgent = admission.band is Band.URGENT and job.latency
            worker.engine.submit(job, now, HIGH if urgent else LOW)
        for job_id in plan.preempt:
            job = self._jobs[job_id]
            worker.engine.abort(job)
            planner.left(state, job_id, now, generated=job.generated)
            self._offer(job)
        for reason in plan.waits.values():
            self.waits[reason.value] = self.waits.get(reason.value, 0) + 1

    def _ablate(self, worker: Worker) -> None:
        if not self._options.reserve:
            worker.state.traffic.residence_s = 0.0
        if not self._options.cold:
            worker.state.slots.draining = worker.state.slots.wanted = None

    def _withdraw(self, candidate: Candidate) -> SimJob:
        job = self._jobs[candidate.id]
        line = self._latency if job.latency else self._throughput[job.tenant, job.adapter]
        del line[job.id]
        self._known.pop(job.id, None)
        return job

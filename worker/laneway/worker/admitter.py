"""The gate between the jobs in hand and the engine: `policy.planner` says who goes in, and when."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress

from laneway.schemas.job import Bucket, Job, SloClass
from laneway.worker.errors import DeadlineOutOfReach
from laneway.worker.observer import Observer
from laneway.worker.policy import headroom, lengths, planner
from laneway.worker.policy.admission import seat_reserve
from laneway.worker.policy.budget import BudgetRule
from laneway.worker.policy.headroom import Headroom
from laneway.worker.policy.lengths import Kind, Lengths
from laneway.worker.policy.order import Candidate, is_hopeless
from laneway.worker.policy.planner import Reason, State
from laneway.worker.policy.reserve import Decayed
from laneway.worker.policy.slots import Slots
from laneway.worker.ports import Claim, Engine, Prepared
from laneway.worker.settings import WorkerSettings

FEED_STEPS = planner.FEED_STEPS + 1
"""One step more than the policy's own, since vLLM schedules a step ahead."""
PLANS_S = 10.0
"""Horizon of the count of plans a second."""
RETHINK_S = 0.05
"""Pause between two looks at what waits while nothing happens: reserves fade, and slack runs out, by themselves."""


class Turn:
    """One job's way through the gate and the engine."""

    def __init__(self, describe: Callable[[], Candidate], learn: Callable[[], None]) -> None:
        self.describe = describe
        """The job as the policy sees it, with what is known of its kind now."""
        self.first_token = learn
        """To be called when the prompt is through."""
        self.let_in: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.tokens = 0
        """Generated during this turn, over all answers."""
        self.scope = asyncio.timeout(None)
        """To be run in: it expires when the job is to leave the engine for one that cannot wait."""

    def add(self, tokens: int) -> None:
        """So many more were generated."""
        if not self.tokens:
            self.first_token()
        self.tokens += tokens


class Admitter:
    """Lets jobs into the engine by `policy.planner`, and keeps the planner's books on what is in it."""

    def __init__(
        self,
        engine: Engine,
        settings: WorkerSettings,
        observer: Observer,
        *,
        now_ms: Callable[[], int],
        broke: Callable[[Exception], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`now_ms` is the server's clock; `broke` is told of a defect, after which nothing goes in any more."""
        self._engine = engine
        self._settings = settings
        self._observer = observer
        self._now_ms = now_ms
        self._broke = broke
        self._clock = clock
        self._state: State | None = None
        self._lengths = Lengths()
        self._turns: dict[str, Turn] = {}
        """Jobs that wait, the oldest first."""
        self._inside: dict[str, Turn] = {}
        self._leaving: set[str] = set()
        """Those of them that were told to leave."""
        self._plans = Decayed(tau_s=PLANS_S)
        self.budget = 0
        """Tokens of a step by the latest plan; 0: none was made."""
        self._look: asyncio.Handle | None = None
        self._later: asyncio.TimerHandle | None = None
        self.waits: Mapping[tuple[SloClass, Bucket], Reason] = {}
        """Per lane with a job in the window, why the first one waits."""

    def __len__(self) -> int:
        return len(self._turns)

    @property
    def plans_s(self) -> float:
        """Plans a second, lately."""
        return self._plans.read(self._clock()) / self._plans.tau_s

    @property
    def state(self) -> State:
        """What the planner knows; made with the first job, when the engine is up."""
        if self._state is None:
            info, settings = self._engine.info, self._settings
            self._state = State(
                headroom=Headroom(seats=info.seats, kv_tokens=info.kv_tokens),
                slots=Slots(most=info.max_loras),
                model=self._observer.model,
                rule=BudgetRule(most=info.step_tokens, tpot_s=self._observer.tpot_s(settings.tpot_ms)),
                feed_steps=FEED_STEPS,
                least_kept=seat_reserve(info.seats, settings.latency_share),
            )
        return self._state

    # --- one job ------------------------------------------------------------------

    @asynccontextmanager
    async def turn(
        self, claim: Claim, prepared: Prepared, done: int = 0, preempted: int | None = None
    ) -> AsyncIterator[Turn]:
        """Wait for the job's turn; it counts as inside the engine until the block ends. Cancelling gives the turn up.

        `done`: tokens of the answer that there are already, to go on from. `preempted`: how often the job has been taken
        out of the engine; None: it cannot go on from its tokens.

        Raises:
            DeadlineOutOfReach: it cannot end in time any more, and `infeasible` says to expire it.
        """
        job_id, answers = claim.job.id, claim.job.sampling.n
        since = self._clock() - max(0, self._now_ms() - claim.submitted_ms) / 1000
        turn = Turn(
            lambda: self._candidate(claim, prepared, done, preempted, since),
            lambda: self._first_token(job_id),
        )
        self._turns[job_id] = turn
        self._rethink()
        try:
            await turn.let_in
            yield turn
            if not turn.scope.expired():
                lengths.record(self._lengths, _kind(claim.job), max(1, done + turn.tokens // answers))
        finally:
            self._turns.pop(job_id, None)
            self._leave(job_id, turn.tokens // answers)

    def _candidate(
        self, claim: Claim, prepared: Prepared, done: int, preempted: int | None, since: float
    ) -> Candidate:
        job = claim.job
        latency = job.slo is SloClass.LATENCY
        guess = lengths.estimate(self._lengths, _kind(job), prepared.max_tokens)
        prompt = len(prepared.prompt_token_ids)
        wanted = None if job.ttft_ms is None else since + job.ttft_ms / 1000
        return Candidate(
            id=job.id,
            slo=job.slo,
            bucket=job.bucket,
            prompt_tokens=prompt + done,
            output_tokens=max(1, guess.mean - done),
            most_tokens=max(1, guess.most - done),
            least_tokens=max(1, guess.least - done),
            since=since,
            due=wanted if latency else claim.deadline,
            deadline=claim.deadline,
            floor_s=0.0 if done else self._observer.floor.seconds(prompt, job.sampling.min_tokens),
            tpot_s=None if job.tpot_ms is None else job.tpot_ms / 1000,
            tenant=job.tenant,
            adapter=job.lora,
            seats=job.sampling.n,
            resumable=preempted is not None,
            preempted=preempted or 0,
        )

    def _first_token(self, job_id: str) -> None:
        headroom.first_token(self.state.headroom, job_id)
        self._rethink()

    def _leave(self, job_id: str, generated: int) -> None:
        if self._inside.pop(job_id, None) is not None:
            self._leaving.discard(job_id)
            planner.left(self.state, job_id, self._clock(), generated=generated)
        self._rethink()

    # --- all of them --------------------------------------------------------------

    def _rethink(self) -> None:
        """Plan anew once everything that happens in this turn of the event loop has happened."""
        if self._look is None:
            self._look = asyncio.get_running_loop().call_soon(self._think)

    def _think(self) -> None:
        self.close()
        try:
            self._plan()
        except Exception as error:
            self._broke(error)
        else:
            if self._turns:
                self._later = asyncio.get_running_loop().call_later(RETHINK_S, self._rethink)

    def _plan(self) -> None:
        if not self._turns:
            self.waits = {}
            return
        if self._leaving:
            return  # what they leave decides
        state, now, stats = self.state, self._clock(), self._engine.stats()
        state.model = self._observer.observe(stats)
        candidates = [turn.describe() for turn in self._turns.values()]
        if self._settings.infeasible == "expire":
            candidates = self._expire(candidates, now)
        plan = planner.plan(
            state,
            now,
            candidates,
            kv_used=round(stats.kv_usage * state.headroom.kv_tokens),
        )
        for admission in plan.admit:
            self._admit(admission.candidate.id)
        for job_id in plan.preempt:
            self._preempt(job_id)
        self.waits, self.budget = plan.waits, plan.budget.tokens
        self._plans.add(1, now)

    def _expire(self, candidates: list[Candidate], now: float) -> list[Candidate]:
        """Turn away what cannot end in time any more; the others."""
        hopeless = {candidate.id for candidate in candidates if is_hopeless(candidate, now)}
        for job_id in hopeless:
            if not (let_in := self._turns.pop(job_id).let_in).done():
                let_in.set_exception(DeadlineOutOfReach())
        return [candidate for candidate in candidates if candidate.id not in hopeless]

    def _admit(self, job_id: str) -> None:
        turn = self._turns.pop(job_id)
        self._inside[job_id] = turn
        if not turn.let_in.done():  # else it was cancelled a moment ago, and leaves at once
            turn.let_in.set_result(None)

    def _preempt(self, job_id: str) -> None:
        turn = self._inside[job_id]
        with suppress(
            RuntimeError
        ):  # it has not entered its scope yet, or has left it: then it stays, or leaves by itself
            turn.scope.reschedule(asyncio.get_running_loop().time())
            self._leaving.add(job_id)

    def close(self) -> None:
        """Forget that there was something to think about."""
        for handle in (self._look, self._later):
            if handle is not None:
                handle.cancel()
        self._look = self._later = None


def _kind(job: Job) -> Kind:
    return job.tenant, job.lora, job.bucket

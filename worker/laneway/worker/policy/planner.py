"""What goes into the engine next, over all jobs that the queue can show: the whole of the first level.

`plan` is called whenever something changed: a job came, ended, or got its first token. It admits

1. urgent jobs, earliest due first: latency jobs into any free seat, promoted throughput jobs into half of them;
2. throughput jobs while the engine can be fed: the least served tenant, its buckets in turn;
3. relegated jobs into what is left,

and says for every lane why its first job still waits. Late binding: throughput work enters only as fast as the
engine computes prompts, so that whatever arrives next finds the engine's own queue nearly empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum

from msgspec import Struct, field

from laneway.schemas.job import Bucket, SloClass
from laneway.worker.policy import fairness, headroom, reserve, slots
from laneway.worker.policy.budget import BudgetRule, StepBudget, step_budget
from laneway.worker.policy.cost import CostModel
from laneway.worker.policy.drr import Rounds, next_bucket, spend
from laneway.worker.policy.fairness import Fairness
from laneway.worker.policy.headroom import Headroom
from laneway.worker.policy.order import Band, Candidate, Pace, rank
from laneway.worker.policy.reserve import Decayed, Traffic
from laneway.worker.policy.slots import COLD_WAIT_S, Slots
from laneway.worker.policy.victims import WASTE_HORIZON_S, WASTE_SHARE, choose_adapter_victims, choose_victims

FEED_STEPS = 2.0
"""Steps' worth of throughput prompts in the engine: one computed, one ready (notes 3.5: k_feed = 2). An engine that
schedules one step ahead needs one more."""
KV_SHARE = {SloClass.LATENCY: 0.98, SloClass.THROUGHPUT: 0.90}
"""Of the KV tokens, what each class may fill: 2% for estimates that were too low, a further 8% for latency jobs."""
PROMOTED_SHARE = 0.5
"""Of the seats, the most that promoted throughput jobs hold (notes 3.4: phi = 0.5)."""


class Reason(Enum):
    """Why a job waits."""

    SEAT = "no seat"
    KEPT = "kept for latency"
    KV = "kv"
    ADAPTER = "adapter slot"
    BUDGET = "budget"
    PACE = "token pace"
    TENANT = "tenant share"
    OLDER = "held for an older job"


_FOR_ALL = {Reason.SEAT, Reason.KEPT, Reason.BUDGET, Reason.PACE}
"""Reasons that hold for every other throughput job of one seat, too."""


class State(Struct, kw_only=True):
    """All that the policy remembers about one engine."""

    headroom: Headroom
    slots: Slots
    model: CostModel
    rule: BudgetRule
    feed_steps: float = FEED_STEPS
    least_kept: int = 0
    """Seats that throughput jobs leave to latency jobs even where the traffic asks for fewer."""
    fairness: Fairness = field(default_factory=Fairness)
    traffic: Traffic = field(default_factory=Traffic)
    rounds: dict[str, Rounds] = field(default_factory=dict)
    """Per tenant, while it has work."""
    computed: Decayed = field(default_factory=lambda: Decayed(tau_s=WASTE_HORIZON_S))
    """Tokens computed for jobs that ended lately."""
    wasted: Decayed = field(default_factory=lambda: Decayed(tau_s=WASTE_HORIZON_S))
    """Tokens to be computed again for preempted jobs."""


class Admission(Struct, frozen=True):
    """A job to put into the engine now."""

    candidate: Candidate
    band: Band


class Plan(Struct, frozen=True):
    """The decisions. They are in the books already: whoever cannot carry one out calls `left`."""

    admit: tuple[Admission, ...] = ()
    preempt: tuple[str, ...] = ()
    """Throughput jobs to take out, tokens kept, and to offer again."""
    waits: dict[tuple[SloClass, Bucket], Reason] = {}
    """Per lane whose first job stays, why."""
    budget: StepBudget = StepBudget(0)


# --- what happens to the engine -------------------------------------------------


def left(state: State, job_id: str, now: float, *, generated: int) -> None:
    """A job has left the engine with so many tokens generated, or could not be put in. Unknown ids are ignored."""
    holding = headroom.release(state.headroom, job_id)
    if holding is None:
        return
    job = holding.candidate
    slots.release(state.slots, job.adapter)
    state.computed.add(job.prompt_tokens + generated, now)
    if job.latency:
        reserve.ended(state.traffic, now - holding.admitted)
    else:
        fairness.charge(
            state.fairness, job.tenant, fairness.charge_of(0, generated - job.output_tokens) * job.seats
        )


# --- the plan ---------------------------------------------------------------------


class _View(Struct, frozen=True):
    """What one plan goes by."""

    now: float
    kv_used: int
    budget: StepBudget
    pace: Pace
    kept: int
    guarded: bool
    """Whether the pace of latency jobs limits how many sequences run."""
    tpot_s: float


class _Draft(Struct):
    """A plan in the making."""

    admit: list[Admission] = field(default_factory=list)
    reasons: dict[str, Reason] = field(default_factory=dict)
    preempt: tuple[str, ...] = ()
    stop: Reason | None = None
    """Holds for all throughput jobs that have not been looked at."""


def plan(state: State, now: float, candidates: Sequence[Candidate], *, kv_used: int) -> Plan:
    """Decide over `candidates`, oldest first: all that wait, or as many of each class as the queue can show.

    Args:
        kv_used: KV tokens in use, as the engine last said.
    """
    view = _look(state, now, kv_used)
    draft = _Draft()
    bands: dict[Band, list[tuple[float, int, Candidate]]] = {band: [] for band in Band}
    for position, candidate in enumerate(candidates):
        band, due = rank(candidate, now, view.pace)
        bands[band].append((due, position, candidate))
    waiting_adapters = {c.adapter for c in candidates}
    if state.slots.wanted is not None and state.slots.wanted not in waiting_adapters:
        slots.cancel_want(state.slots)

    passed = _admit_urgent(state, view, draft, sorted(bands[Band.URGENT]))
    _admit_usual(state, view, draft, sorted(passed + bands[Band.USUAL]))
    _admit_relegated(state, view, draft, sorted(bands[Band.RELEGATED]))
    return Plan(tuple(draft.admit), draft.preempt, _explain(state, draft, candidates), view.budget)


def _look(state: State, now: float, kv_used: int) -> _View:
    room = state.headroom
    tpots = [h.candidate.tpot_s for h in room.holdings.values() if h.candidate.tpot_s and h.candidate.latency]
    tpot_s = min(tpots, default=state.rule.tpot_s)
    guarded = room.latency_seats > 0 or state.traffic.present(now)
    decodes = room.decodes
    budget = step_budget(state.model, state.rule, decodes=decodes, kv=kv_used, reading=guarded, tpot_s=tpot_s)
    prompt = max(1, budget.tokens - decodes)
    step = state.model.step_s(prompt, decodes, kv_used)
    kept = reserve.seats_kept(state.traffic, now, seats=room.seats, in_use=room.latency_seats)
    kept = max(kept, state.least_kept - room.latency_seats)
    return _View(now, kv_used, budget, Pace(step / prompt, step), kept, guarded, tpot_s)


def _why_not(state: State, view: _View, job: Candidate) -> Reason | None:
    """What keeps the job out of the engine, or None."""
    room = state.headroom
    if not slots.fits(state.slots, job.adapter):
        return Reason.ADAPTER
    if room.free < min(job.seats, room.seats):
        return Reason.SEAT
    if room.holdings and _kv_missing(state, view, job) > 0:
        return Reason.KV
    if job.latency or not room.holdings:
        return None  # an empty engine takes whatever comes
    if room.free - job.seats < view.kept:
        return Reason.KEPT
    if room.backlog >= state.feed_steps * view.budget.tokens:
        return Reason.BUDGET
    if view.guarded and room.throughput_seats and not _keeps_pace(state, view, job):
        return Reason.PACE
    return None


def _kv_missing(state: State, view: _View, job: Candidate) -> float:
    """KV tokens by which the job does not fit, now and on average; negative when it does."""
    room = state.headroom
    now = view.kv_used + room.backlog + job.prompt_tokens
    return max(now, room.kv + headroom.kv_of(job)) - KV_SHARE[job.slo] * room.kv_tokens


def _keeps_pace(state: State, view: _View, job: Candidate) -> bool:
    """Whether the steady step meets the target with this job, too: all sequences decode, and as many prompt tokens
    are computed as replace them when they end. More sequences than that would only take turns."""
    room = state.headroom
    prompt = max(float(state.rule.floor), room.refill + headroom.refill_of(job))
    decodes = room.latency_seats + room.throughput_seats + job.seats
    step = state.model.step_s(prompt, decodes, room.kv + headroom.kv_of(job))
    return step <= view.tpot_s * (1 - state.rule.margin)


def _take(state: State, view: _View, draft: _Draft, job: Candidate, band: Band) -> None:
    promoted = band is Band.URGENT and not job.latency
    slots.take(state.slots, job.adapter)
    headroom.take(state.headroom, job, view.now, promoted=promoted)
    if job.latency:
        state.traffic.arrivals.add(1, view.now)
    else:
        cost = fairness.charge_of(job.prompt_tokens, job.output_tokens * job.seats)
        fairness.charge(state.fairness, job.tenant, cost)
    draft.admit.append(Admission(job, band))


_Ranked = list[tuple[float, int, Candidate]]


def _admit_urgent(state: State, view: _View, draft: _Draft, ranked: _Ranked) -> _Ranked:
    """Earliest due first. Returns the promoted jobs that found their share used up: they compete as usual."""
    most_promoted = PROMOTED_SHARE * state.headroom.seats
    passed: _Ranked = []
    for entry in ranked:
        job = entry[2]
        if not job.latency and draft.stop is not None:
            continue
        if not job.latency and state.headroom.promoted_seats + job.seats > max(1, most_promoted):
            passed.append(entry)
            continue
        reason = _why_not(state, view, job)
        if reason is None:
            _take(state, view, draft, job, Band.URGENT)
            continue
        draft.reasons[job.id] = reason
        if job.latency and not draft.preempt:
            draft.preempt = _victims_for(state, view, job, reason)
        if reason is Reason.ADAPTER and job.adapter is not None:
            slots.want(state.slots, job.adapter)
        else:
            draft.stop = Reason.OLDER  # no throughput job may take what this one waits for
    return passed


def _victims_for(state: State, view: _View, job: Candidate, reason: Reason) -> tuple[str, ...]:
    room = state.headroom
    allowance = WASTE_SHARE * state.computed.read(view.now) - state.wasted.read(view.now)
    if reason is Reason.ADAPTER:
        victims = choose_adapter_victims(
            room.holdings.values(), allowance=allowance, spare=state.slots.pinned
        )
    else:
        victims = choose_victims(
            room.holdings.values(),
            seats=job.seats - room.free,
            kv=_kv_missing(state, view, job),
            now=view.now,
            pace=view.pace,
            allowance=allowance,
        )
    for victim in victims:
        holding = room.holdings[victim]
        state.wasted.add(holding.candidate.prompt_tokens + holding.generated, view.now)
    return victims


def _admit_usual(state: State, view: _View, draft: _Draft, ranked: _Ranked) -> None:
    """The least served tenant first, its buckets in turn, within a bucket earliest due first."""
    queues: dict[str, dict[Bucket, list[Candidate]]] = {}
    for _, _, job in reversed(ranked):  # reversed, so that the next job is popped from the end
        queues.setdefault(job.tenant, {}).setdefault(job.bucket, []).append(job)
    fairness.note_waiting(state.fairness, queues.keys())
    state.rounds = {tenant: state.rounds.get(tenant, Rounds()) for tenant in queues}
    while queues and draft.stop is None:
        tenant = fairness.least_served(state.fairness, queues.keys())
        if not _admit_one(state, view, draft, state.rounds[tenant], queues[tenant]):
            del queues[tenant]


def _admit_one(
    state: State, view: _View, draft: _Draft, rounds: Rounds, buckets: dict[Bucket, list[Candidate]]
) -> bool:
    """Admit one job of a tenant; False when none of its buckets can give one."""
    heads: dict[Bucket, float] = {}
    for bucket, jobs in buckets.items():
        job = _first_admissible(state, view, draft, jobs)
        if job is not None:
            heads[bucket] = fairness.charge_of(job.prompt_tokens, job.output_tokens * job.seats)
    chosen = next_bucket(rounds, heads, buckets.keys())
    if chosen is None:
        return False
    job = buckets[chosen].pop()
    spend(rounds, chosen, heads[chosen])
    _take(state, view, draft, job, Band.USUAL)
    if not buckets[chosen]:
        del buckets[chosen]
    return bool(buckets)


def _first_admissible(state: State, view: _View, draft: _Draft, jobs: list[Candidate]) -> Candidate | None:
    """The next job of a bucket, past those that only lack an adapter slot; these are dropped from `jobs`."""
    while jobs:
        job = jobs[-1]
        reason = _why_not(state, view, job)
        if reason is None:
            return job
        draft.reasons[job.id] = reason
        if reason is not Reason.ADAPTER:
            if reason in _FOR_ALL and job.seats == 1:
                draft.stop = reason
            return None
        if job.adapter is not None and view.now - job.since >= COLD_WAIT_S:
            slots.want(state.slots, job.adapter)
        jobs.pop()
    return None


def _admit_relegated(state: State, view: _View, draft: _Draft, ranked: _Ranked) -> None:
    for _, _, job in ranked:
        if draft.stop is not None:
            return
        reason = _why_not(state, view, job)
        if reason is None:
            _take(state, view, draft, job, Band.RELEGATED)
        else:
            draft.reasons[job.id] = reason
            draft.stop = reason if reason in _FOR_ALL else None


def _explain(
    state: State, draft: _Draft, candidates: Iterable[Candidate]
) -> dict[tuple[SloClass, Bucket], Reason]:
    """Per lane, why its oldest job that stays has to."""
    gone = {admission.candidate.id for admission in draft.admit}
    least = min((state.fairness.served[t] for t in state.fairness.active), default=0.0)
    waits: dict[tuple[SloClass, Bucket], Reason] = {}
    for job in candidates:
        lane = (job.slo, job.bucket)
        if job.id in gone or lane in waits:
            continue
        others_first = state.fairness.served.get(job.tenant, 0.0) > least
        unseen = Reason.TENANT if others_first and draft.stop in _FOR_ALL else draft.stop or Reason.BUDGET
        waits[lane] = draft.reasons.get(job.id, unseen)
    return waits

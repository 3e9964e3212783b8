"""Which throughput jobs to take out of the engine for a latency job that cannot wait. Their tokens are kept.

Preempting is bounded: it repeats the victim's prompt, and without a bound the least advanced jobs are thrown out over
and over (a pilot saw 25 preemptions among 24 jobs).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from laneway.worker.policy.headroom import Holding, kv_of
from laneway.worker.policy.order import Pace

MOST_PREEMPTIONS = 2
"""Times one job may be preempted."""
LEAST_REMAINING = 16
"""A victim has at least so many tokens to go: a job about to end frees its seat sooner by itself."""
WASTE_SHARE = 0.05
"""Tokens computed in vain, at most, as a share of all computed over `WASTE_HORIZON_S`."""
WASTE_HORIZON_S = 60.0


def choose_victims(
    holdings: Iterable[Holding], *, seats: int, kv: float, now: float, pace: Pace, allowance: float
) -> tuple[str, ...]:
    """The jobs to preempt so that `seats` sequences and `kv` tokens become free; none when that cannot be done.

    Order: most slack first, then least work to repeat. `allowance`: tokens that may be computed again in all.
    """
    chosen: list[str] = []
    for holding in sorted(filter(_eligible, holdings), key=lambda h: _preference(h, now, pace)):
        if seats <= 0 and kv <= 0:
            break
        allowance -= holding.candidate.prompt_tokens + holding.generated
        if allowance < 0:
            break
        chosen.append(holding.candidate.id)
        seats -= holding.candidate.seats
        kv -= kv_of(holding.candidate)
    return tuple(chosen) if seats <= 0 and kv <= 0 else ()


def choose_adapter_victims(
    holdings: Iterable[Holding], *, allowance: float, spare: Collection[str]
) -> tuple[str, ...]:
    """All jobs of the one adapter that is cheapest to put off, so that its slot becomes free.

    Adapters with a job that may not be preempted, and those in `spare`, are left alone.
    """
    by_adapter: dict[str, list[Holding]] = {}
    for holding in holdings:
        if holding.candidate.adapter is not None and holding.candidate.adapter not in spare:
            by_adapter.setdefault(holding.candidate.adapter, []).append(holding)
    costs = {
        adapter: sum(h.candidate.prompt_tokens + h.generated for h in group)
        for adapter, group in by_adapter.items()
        if all(_eligible(h) for h in group)
    }
    if not costs:
        return ()
    cheapest = min(costs, key=lambda adapter: (costs[adapter], adapter))
    if costs[cheapest] > allowance:
        return ()
    return tuple(h.candidate.id for h in by_adapter[cheapest])


def _eligible(holding: Holding) -> bool:
    job = holding.candidate
    return (
        not job.latency
        and not holding.promoted
        and job.resumable
        and job.preempted < MOST_PREEMPTIONS
        and job.most_tokens - holding.generated > LEAST_REMAINING
    )


def _preference(holding: Holding, now: float, pace: Pace) -> tuple[float, int]:
    job = holding.candidate
    remaining_s = (job.most_tokens - holding.generated) * pace.token_s
    slack = float("inf") if job.due is None else job.due - now - remaining_s
    return -slack, job.prompt_tokens + holding.generated

"""What the engine holds and what is left: seats, KV tokens, prompt tokens still to be computed.

Sums are kept up to date with every job that comes and goes; `tests/unit/policy` recounts them.
"""

from __future__ import annotations

from msgspec import Struct, field

from laneway.worker.policy.order import Candidate

BLOCK = 16
"""Tokens per KV block: vLLM's default on GPUs."""


class Holding(Struct, kw_only=True):
    """A job in the engine."""

    candidate: Candidate
    admitted: float
    promoted: bool = False
    """A throughput job that went in ahead of its turn."""
    prefilled: bool = False
    generated: int = 0
    """Tokens per answer so far, as last told."""


class Headroom(Struct, kw_only=True):
    """All holdings and their sums. Capacities: sequences at once, and tokens of KV cache."""

    seats: int
    kv_tokens: int
    holdings: dict[str, Holding] = field(default_factory=dict)
    latency_seats: int = 0
    throughput_seats: int = 0
    promoted_seats: int = 0
    backlog: int = 0
    """Prompt tokens of jobs without a first token."""
    decodes: int = 0
    """Sequences past their first token."""
    kv: float = 0.0
    """KV tokens that all holdings take halfway through their answers. Jobs come and go at all stages, so this is what
    they take together at any time; committing each one's end instead leaves a fifth of the cache empty."""

    refill: float = 0.0
    """Prompt tokens per step that replace the holdings as they end: each lasts as many steps as it has tokens."""

    @property
    def free(self) -> int:
        """Seats nobody holds, never negative."""
        return max(0, self.seats - self.latency_seats - self.throughput_seats)


def kv_of(candidate: Candidate) -> float:
    """KV tokens that a job takes halfway through its answers, with half a block wasted per sequence."""
    return candidate.seats * (candidate.prompt_tokens + candidate.output_tokens / 2 + BLOCK / 2)


def refill_of(candidate: Candidate) -> float:
    """Prompt tokens per step that it takes to keep the job's seats in use."""
    return candidate.prompt_tokens / max(1, candidate.output_tokens)


def take(headroom: Headroom, candidate: Candidate, now: float, *, promoted: bool = False) -> None:
    """The job goes into the engine."""
    headroom.holdings[candidate.id] = Holding(candidate=candidate, admitted=now, promoted=promoted)
    headroom.backlog += candidate.prompt_tokens
    _add(headroom, candidate, promoted, +1)


def first_token(headroom: Headroom, job_id: str) -> None:
    """The job's prompt is through. Unknown and repeated calls change nothing."""
    holding = headroom.holdings.get(job_id)
    if holding is not None and not holding.prefilled:
        holding.prefilled = True
        headroom.backlog -= holding.candidate.prompt_tokens
        headroom.decodes += holding.candidate.seats


def release(headroom: Headroom, job_id: str) -> Holding | None:
    """The job has left the engine, for whatever reason. None: it was not there."""
    holding = headroom.holdings.pop(job_id, None)
    if holding is not None:
        if holding.prefilled:
            headroom.decodes -= holding.candidate.seats
        else:
            headroom.backlog -= holding.candidate.prompt_tokens
        _add(headroom, holding.candidate, holding.promoted, -1)
    return holding


def _add(headroom: Headroom, candidate: Candidate, promoted: bool, sign: int) -> None:
    if candidate.latency:
        headroom.latency_seats += sign * candidate.seats
    else:
        headroom.throughput_seats += sign * candidate.seats
        headroom.promoted_seats += sign * candidate.seats * promoted
    headroom.kv += sign * kv_of(candidate)
    headroom.refill += sign * refill_of(candidate)

"""Who goes first: earliest due among the urgent, then everybody else, then what cannot be in time any more.

A job is *urgent* when somebody waits for its first token, when its deadline comes near, or when it has waited too
long. Due times are absolute, so that ageing needs no bookkeeping: a waiting job gets more urgent by itself.
"""

from __future__ import annotations

import math
from enum import IntEnum

from msgspec import Struct

from laneway.schemas.job import Bucket, SloClass

TTFT_S = 1.0
"""Time to the first token that a latency job is promised when it names none, seconds."""
PROMOTE_SLACK = 1.0
"""A throughput job is promoted when its slack falls under this many times its service time (notes: sigma = 1)."""
AGE_LIMIT_S = 300.0
"""A throughput job that has waited so long is urgent, deadline or not: thirty times the residence of a batch job on
an H200 under load (about 10 s), so that it never bites while a backlog moves."""
LATE_PENALTY_S = 10.0
"""A latency job that is late already is ordered as though due so much later: those that can still be met go first
(under overload, earliest-due-first alone makes everybody late), and still nobody waits for ever."""


class Band(IntEnum):
    """Order of admission."""

    URGENT = 0
    """By due time."""
    USUAL = 1
    """Throughput work: least served tenant, then buckets in turn."""
    RELEGATED = 2
    """What will miss its deadline: throughput work at the present pace, latency jobs even alone in the engine. Only
    into what nobody else wants."""


class Candidate(Struct, frozen=True, kw_only=True):
    """A job that waits, with what is known before it runs."""

    id: str
    slo: SloClass
    bucket: Bucket
    prompt_tokens: int
    output_tokens: int
    """Per answer, on average; see `lengths.estimate`."""
    most_tokens: int
    """Per answer, nine times in ten no more."""
    least_tokens: int = 1
    """Per answer, nine times in ten no less."""
    since: float
    """Acceptance, in seconds of the clock that `now` is read from."""
    due: float | None = None
    """For the first token (latency) or the end (throughput), on the same clock."""
    deadline: float | None = None
    """For the end, on the same clock: at that moment the job expires."""
    floor_s: float = 0.0
    """Seconds from admission to the end that are the least it can take; see `policy.feasible`."""
    tpot_s: float | None = None
    """Target for the time between tokens."""
    tenant: str = "default"
    adapter: str | None = None
    seats: int = 1
    """Sequences: `n` answers take `n` seats."""
    resumable: bool = True
    """Whether it can go on from its tokens after being preempted; see `policy.resume`."""
    preempted: int = 0
    """How often it has been already."""

    @property
    def latency(self) -> bool:
        """Whether somebody waits for the first token."""
        return self.slo is SloClass.LATENCY


class Pace(Struct, frozen=True):
    """What the engine gives at present, in seconds per token."""

    prefill_s: float
    """Per prompt token."""
    token_s: float
    """Between two tokens of one answer: a step."""


def is_hopeless(candidate: Candidate, now: float) -> bool:
    """Whether the job misses its deadline even if it has the engine to itself from now on."""
    return candidate.deadline is not None and candidate.deadline - now < candidate.floor_s


def first_token_s(candidate: Candidate, pace: Pace) -> float:
    """Seconds from admission to the first token at the present pace."""
    return candidate.prompt_tokens * pace.prefill_s + pace.token_s


def rank(candidate: Candidate, now: float, pace: Pace) -> tuple[Band, float]:
    """The band and, within it, the time to sort by."""
    if is_hopeless(candidate, now):
        return Band.RELEGATED, math.inf
    first = first_token_s(candidate, pace)
    if candidate.latency:
        due = candidate.since + TTFT_S if candidate.due is None else candidate.due
        return Band.URGENT, due if now + first <= due else due + LATE_PENALTY_S
    aged = candidate.since + AGE_LIMIT_S
    if now >= aged:
        return Band.URGENT, aged if candidate.due is None else min(candidate.due, aged)
    if candidate.due is None:
        return Band.USUAL, aged
    left = candidate.due - now
    if left < first + candidate.least_tokens * pace.token_s:
        return Band.RELEGATED, candidate.due
    service = first + candidate.most_tokens * pace.token_s
    promoted = left - service < PROMOTE_SLACK * service
    return (Band.URGENT if promoted else Band.USUAL), candidate.due

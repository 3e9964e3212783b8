"""What to claim next, given what the worker holds.

Late binding: a job stays in its lane until there is a seat for it, so that whatever arrives next can still go first,
here or at another worker. Only a small window of throughput jobs is claimed ahead of its seats: `planner` chooses among
what the worker can see.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec import Struct

from laneway.schemas.job import Bucket, SloClass
from laneway.schemas.keys import Lane, lanes

WINDOW_SHARE = 1 / 16
"""Of the seats, the window of each throughput lane where none is set: all three lanes together hold less than a fifth
of what the engine holds, which is claimed again within a fifth of a batch job's residence."""
WINDOW_RANGE = (2, 32)
"""Bounds of the same: two jobs are the least to choose from, and 32 are one claim."""


class Ledger(Struct, frozen=True, kw_only=True):
    """What the worker holds now, in sequences (a job with `n` answers takes `n` seats)."""

    seats: int
    """Sequences the engine runs at once: `max_num_seqs`."""
    latency: int = 0
    """Seats taken or about to be taken by latency jobs."""
    throughput: int = 0
    """Seats taken by throughput jobs."""
    waiting: Mapping[Bucket, int] = {}
    """Throughput jobs in the window, by bucket."""

    @property
    def free(self) -> int:
        """Seats nobody holds, never negative."""
        return max(0, self.seats - self.latency - self.throughput)


class Stage(Struct, frozen=True):
    """Lanes to visit in order, and the most jobs to take from all of them together."""

    lanes: tuple[Lane, ...]
    cap: int


class ClaimPlan(Struct, frozen=True):
    """What one pull may take: the stages in order, at most `total` jobs over all of them."""

    total: int
    stages: tuple[Stage, ...] = ()


def seat_reserve(seats: int, share: float) -> int:
    """The least seats that throughput jobs leave free for the latency jobs of the next moment: `share` of all, at
    least one. A lone seat is shared: keeping it would mean that throughput work never runs."""
    return 0 if seats <= 1 else min(seats - 1, max(1, math.ceil(seats * share)))


def window_of(seats: int, window: int) -> int:
    """Jobs claimed ahead per throughput lane: `window`, or for 0 what suits the seats."""
    least, most = WINDOW_RANGE
    return window or max(least, min(most, math.ceil(seats * WINDOW_SHARE)))


def plan_claim(ledger: Ledger, *, window: int, partition: int, turn: int, most: int) -> ClaimPlan:
    """Latency lanes first, into free seats; then each throughput lane, as far as its window has room.

    Args:
        turn: counts pulls. The throughput bucket that goes first changes with it, so that none starves.
        most: the most jobs of one pull.
    """
    by_class = {slo: tuple(lane for lane in lanes(partition) if lane.slo is slo) for slo in SloClass}
    throughput = by_class[SloClass.THROUGHPUT]
    first = turn % len(throughput)
    stages = [Stage(by_class[SloClass.LATENCY], min(ledger.free, most))]
    stages += [
        Stage((lane,), min(most, max(0, window - ledger.waiting.get(lane.bucket, 0))))
        for lane in throughput[first:] + throughput[:first]
    ]
    return ClaimPlan(min(most, sum(stage.cap for stage in stages)), tuple(stages))


def may_hold_more(plan: ClaimPlan, taken: Mapping[Lane, int]) -> bool:
    """Whether the lanes may have more for this plan: a stage was filled, or the whole plan."""
    filled = any(0 < stage.cap <= sum(taken.get(lane, 0) for lane in stage.lanes) for stage in plan.stages)
    return filled or 0 < plan.total <= sum(taken.values())

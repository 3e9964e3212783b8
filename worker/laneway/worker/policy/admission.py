"""What to claim next, given what the engine holds.

Late binding: a job stays in its lane until there is a seat for it, so that the engine's own queue stays nearly
empty and whatever arrives next can still go first.
"""

from __future__ import annotations

import math

from msgspec import Struct

from laneway.schemas.job import SloClass
from laneway.schemas.keys import Lane, lanes


class Ledger(Struct, frozen=True, kw_only=True):
    """What the engine holds now, in sequences (a job with `n` answers takes `n` seats)."""

    seats: int
    """Sequences the engine runs at once: `max_num_seqs`."""
    latency: int = 0
    """Seats taken by latency jobs."""
    throughput: int = 0
    """Seats taken by throughput jobs."""

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
    """Seats that throughput jobs leave free for the latency jobs of the next moment: `share` of all, at least one.

    A lone seat is shared: keeping it would mean that throughput work never runs.
    """
    return 0 if seats <= 1 else min(seats - 1, max(1, math.ceil(seats * share)))


def plan_claim(ledger: Ledger, *, reserve: int, partition: int, turn: int, most: int) -> ClaimPlan:
    """Latency lanes first, into every free seat; throughput lanes into what the reserve leaves.

    Args:
        reserve: seats kept for latency jobs; those that latency jobs already hold count towards it.
        turn: counts pulls. The throughput bucket that goes first changes with it, so that none starves.
        most: the most jobs of one pull, whatever is free.
    """
    total = min(ledger.free, most)
    kept = max(0, reserve - ledger.latency)
    spare = max(0, min(ledger.free - kept, most))
    by_class = {slo: tuple(lane for lane in lanes(partition) if lane.slo is slo) for slo in SloClass}
    throughput = by_class[SloClass.THROUGHPUT]
    first = turn % len(throughput)
    return ClaimPlan(
        total,
        (
            Stage(by_class[SloClass.LATENCY], total),
            Stage(throughput[first:] + throughput[:first], spare),
        ),
    )

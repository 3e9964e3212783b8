"""How many seats throughput work leaves free for the latency jobs of the next moment.

Square-root staffing: a Poisson stream that keeps `L` seats busy on average (arrival rate times residence) finds a free
one about 19 times in 20 when `L + 2 * sqrt(L)` are there.
"""

from __future__ import annotations

import math

from msgspec import Struct, field

HORIZON_S = 30.0
"""Memory of the arrival rate, seconds: long against gaps between jobs, short against a change of load."""
SPREADS = 2.0
"""Standard deviations of a Poisson count that are kept beyond its mean (notes 3.5: 2)."""
MOST_SHARE = 0.5
"""Most of the seats that are kept, whatever the traffic (notes 3.5: half)."""
PRESENT_RATE = 0.1
"""Latency jobs a second from which on their pace is guarded even while none is there: one in ten seconds, the
residence of a batch job, which would otherwise have to be waited out."""


class Decayed(Struct):
    """A sum that fades exponentially; over its horizon `tau_s` it estimates a rate."""

    tau_s: float = HORIZON_S
    total: float = 0.0
    at: float = 0.0

    def add(self, amount: float, now: float) -> None:
        """Count `amount` at time `now`."""
        self.total = self.read(now) + amount
        self.at = max(self.at, now)

    def read(self, now: float) -> float:
        """What is left of the sum."""
        return self.total * math.exp(-max(0.0, now - self.at) / self.tau_s)


class Traffic(Struct):
    """The latency jobs that this worker took lately: of several workers, each keeps seats for its own share."""

    arrivals: Decayed = field(default_factory=Decayed)
    residence_s: float = 1.0
    """Mean time in the engine, fading by a tenth per job; starts at a second until known."""

    def rate(self, now: float) -> float:
        """Arrivals per second."""
        return self.arrivals.read(now) / self.arrivals.tau_s

    def present(self, now: float) -> bool:
        """Whether latency jobs are to be expected during the residence of a batch job admitted now."""
        return self.rate(now) >= PRESENT_RATE


def ended(traffic: Traffic, residence_s: float) -> None:
    """A latency job has left the engine after so long."""
    traffic.residence_s += 0.1 * (residence_s - traffic.residence_s)


def seats_kept(traffic: Traffic, now: float, *, seats: int, in_use: int) -> int:
    """Seats to keep free now; those that latency jobs hold (`in_use`) count. At least one, none of a lone seat."""
    if seats <= 1:
        return 0
    load = traffic.rate(now) * traffic.residence_s
    wanted = math.ceil(load + SPREADS * math.sqrt(load)) - in_use
    return max(1, min(wanted, int(seats * MOST_SHARE)))

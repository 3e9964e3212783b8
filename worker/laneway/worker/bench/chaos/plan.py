"""What is submitted and what breaks, and when: all of it drawn from one seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from enum import Enum
from typing import Any

from msgspec import Struct

STEP_S = 0.02
"""Length of a step of the fake engines: a job of 50 tokens takes a second."""
LEASE_S = 2.5
JOBS_PER_S = 50
SHORTEST_S = 12.0
MOST_POISON = 5
KILL_EVERY_S, FREEZE_EVERY_S, RESTART_EVERY_S, DROP_EVERY_S = 2.5, 4.0, 9.0, 0.5
"""Mean seconds between two faults of a kind."""
FREEZE_LEASES = (1.6, 2.6)
"""A frozen worker wakes after so many leases: its jobs are another's by then."""
LATENCY_SHARE, LONG_SHARE, CANCEL_SHARE, DEADLINE_SHARE = 0.3, 0.05, 0.05, 0.05


class Kind(Enum):
    """What is to become of a job."""

    PLAIN = "plain"
    """It completes."""
    POISON = "poison"
    """It kills every engine that runs it, and is dead-lettered."""
    CANCEL = "cancel"
    """Somebody cancels it: it completes or is cancelled."""
    DEADLINE = "deadline"
    """It completes or expires."""


class Arrival(Struct, frozen=True, kw_only=True):
    """One job to be submitted."""

    at: float
    """Seconds since the beginning."""
    kind: Kind
    fields: dict[str, Any]
    """Those of `Producer.submit`, without the model."""
    cancel_after: float = 0.0


class Fault(Enum):
    """What breaks."""

    KILL = "kill -9 of a worker"
    FREEZE = "worker frozen past its lease"
    RESTART = "server killed and restarted"
    DROP = "reply dropped"


class Strike(Struct, frozen=True, kw_only=True):
    """One fault to be done."""

    at: float
    fault: Fault
    worker: int = 0
    """Which worker is hit, counted from 0."""
    seconds: float = 0.0
    """How long a freeze lasts, or the server stays away."""


class Plan(Struct, frozen=True, kw_only=True):
    """A whole run."""

    seconds: float
    """Length of the time in which jobs arrive and things break."""
    limit_s: float
    """Time after which whatever has not ended counts as missing."""
    arrivals: tuple[Arrival, ...]
    strikes: tuple[Strike, ...]


def make_plan(jobs: int, seed: int, workers: int) -> Plan:
    """The plan of `seed`: the same for the same arguments."""
    chance = random.Random(seed)
    seconds = max(SHORTEST_S, jobs / JOBS_PER_S)
    strikes = [strike for fault in _MEANS for strike in _strikes(chance, fault, seconds, workers)]
    return Plan(
        seconds=seconds,
        limit_s=2 * seconds + 24 * LEASE_S,
        arrivals=tuple(_arrivals(chance, jobs, seconds)),
        strikes=tuple(sorted(strikes, key=lambda strike: strike.at)),
    )


def _arrivals(chance: random.Random, jobs: int, seconds: float) -> Iterator[Arrival]:
    poison = set(chance.sample(range(jobs), min(MOST_POISON, max(1, jobs // 100), jobs)))
    times = sorted(chance.uniform(0, seconds) for _ in range(jobs))
    for number, at in enumerate(times):
        kind = Kind.POISON if number in poison else _kind(chance)
        fields = _fields(chance, number)
        if kind is Kind.POISON:
            fields["metadata"] = {"fake": "die"}
        if kind is Kind.DEADLINE:
            fields["deadline_ms"] = chance.randint(200, 6000)
        yield Arrival(at=at, kind=kind, fields=fields, cancel_after=chance.uniform(0.0, 2.0))


def _kind(chance: random.Random) -> Kind:
    drawn = chance.random()
    if drawn < CANCEL_SHARE:
        return Kind.CANCEL
    return Kind.DEADLINE if drawn < CANCEL_SHARE + DEADLINE_SHARE else Kind.PLAIN


def _fields(chance: random.Random, number: int) -> dict[str, Any]:
    latency = chance.random() < LATENCY_SHARE
    if latency:
        tokens = chance.randint(5, 30)
    else:
        tokens = chance.randint(200, 300) if chance.random() < LONG_SHARE else chance.randint(20, 100)
    return {
        "prompt": f"job {number}",
        "slo": "latency" if latency else "throughput",
        "sampling": {"max_tokens": tokens, "ignore_eos": True},
        "stream": latency and chance.random() < LATENCY_SHARE,
        "idempotency_key": f"chaos-{number}",
    }


_MEANS = {
    Fault.KILL: KILL_EVERY_S,
    Fault.FREEZE: FREEZE_EVERY_S,
    Fault.RESTART: RESTART_EVERY_S,
    Fault.DROP: DROP_EVERY_S,
}


def _strikes(chance: random.Random, fault: Fault, seconds: float, workers: int) -> Iterator[Strike]:
    """Faults of one kind, about `_MEANS` apart; the first one always falls into the run."""
    at = _MEANS[fault] * chance.uniform(0.3, 1.0)
    while at < seconds:
        lasting = {
            Fault.FREEZE: LEASE_S * chance.uniform(*FREEZE_LEASES),
            Fault.RESTART: chance.uniform(0.1, 1.0),
        }
        yield Strike(at=at, fault=fault, worker=chance.randrange(workers), seconds=lasting.get(fault, 0.0))
        at += _MEANS[fault] * chance.uniform(0.5, 1.5)

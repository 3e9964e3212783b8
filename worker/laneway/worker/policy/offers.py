"""When a job that waits here for a seat is offered to other workers: the later, the less they took of it before.

A worker that is alone, or whose peers are as full, would else hand its jobs back and claim them again every few seconds.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from laneway.schemas.ids import JobId

PATIENCE_S = 5.0
"""A throughput job waits so long for a seat here before it is offered to others, once the lanes are empty."""
LONGEST_S = 60.0
"""The longest patience: so late a worker that has just come up gets what waits elsewhere, at worst."""


class Offers(Struct):
    """What was offered, and how long to wait before the next offer."""

    patience_s: float = PATIENCE_S
    out: frozenset[JobId] = frozenset()
    """Jobs of the last offer, until it is known who took them."""


def claimed(offers: Offers, jobs: Iterable[JobId]) -> None:
    """Jobs were claimed here. Some of the last offer among them: nobody else wanted these."""
    if not offers.out.isdisjoint(jobs):
        offers.patience_s = min(LONGEST_S, 2 * offers.patience_s)
        offers.out = frozenset()


def gone(offers: Offers) -> None:
    """The lanes are empty, and nothing of the last offer came back: others have it, and may take more."""
    if offers.out:
        offers.patience_s = PATIENCE_S
        offers.out = frozenset()

"""Tenants share the throughput seats by what they were served, not by how much they send.

A virtual token counter per tenant (VTC, OSDI'24): the smallest counter goes first. An admission is charged at once
with what it is expected to take and corrected when the job ends, so that parallel workers do not all pick one tenant.

Bound: between two tenants that wait all the time and could always be admitted, the counters differ by at most the
largest single charge.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct, field

PROMPT_WEIGHT = 1.0
"""Charge per prompt token."""
OUTPUT_WEIGHT = 2.0
"""Charge per output token: the paper's setting; an output token is computed alone, a prompt token in bulk."""


class Fairness(Struct):
    """Service so far per tenant, in weighted tokens over the tenant's weight."""

    served: dict[str, float] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    """Share that a tenant is due against others; 1 where none is set."""
    active: set[str] = field(default_factory=set)
    """Tenants that had something waiting at the last look."""


def charge_of(prompt_tokens: int, output_tokens: int) -> float:
    """Weighted tokens of a job."""
    return PROMPT_WEIGHT * prompt_tokens + OUTPUT_WEIGHT * output_tokens


def note_waiting(fairness: Fairness, waiting: Collection[str]) -> None:
    """Say who waits now. Whoever comes back is lifted to the least of those who stayed: being away saves nothing up."""
    stayed = [fairness.served.get(tenant, 0.0) for tenant in waiting if tenant in fairness.active]
    level = min(stayed) if stayed else max(fairness.served.values(), default=0.0)
    for tenant in waiting:
        if tenant not in fairness.active:
            fairness.served[tenant] = max(fairness.served.get(tenant, 0.0), level)
    if waiting:
        fairness.active = set(waiting)


def charge(fairness: Fairness, tenant: str, tokens: float) -> None:
    """Add to a tenant's counter; negative corrects an earlier charge that was too high."""
    weight = fairness.weights.get(tenant, 1.0)
    fairness.served[tenant] = fairness.served.get(tenant, 0.0) + tokens / weight


def least_served(fairness: Fairness, tenants: Collection[str]) -> str:
    """The tenant to serve next; ties by name, so that every worker decides alike. `tenants` must not be empty."""
    return min(tenants, key=lambda tenant: (fairness.served.get(tenant, 0.0), tenant))

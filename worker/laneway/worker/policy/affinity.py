"""Which worker takes a job with an adapter, where several pull from one queue: no router, only a rule all can apply.

A worker takes it when the adapter is in one of its slots already, when it is the adapter's owner by rendezvous
hashing (so that each adapter lives in few places), or when the job has waited long enough that its owner must be busy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from laneway.schemas.ids import AdapterId

STEAL_LATENCY_S = 0.03
"""A latency job is anyone's after 30 ms: one step of its owner (notes 3.10: 20 to 50 ms)."""
STEAL_THROUGHPUT_S = 3.0
"""A throughput job is anyone's after 3 s: a third of a batch job's residence (notes 3.10: 1 to 5 s)."""


def owner(workers: Sequence[str], adapter: AdapterId) -> str:
    """The worker that an adapter belongs to; a change of `workers` moves few adapters. `workers` is not empty."""
    return max(
        workers, key=lambda name: hashlib.blake2s(f"{name}:{adapter}".encode(), digest_size=8).digest()
    )


def may_pull(
    worker: str, workers: Sequence[str], adapter: AdapterId, *, resident: bool, waited_s: float, latency: bool
) -> bool:
    """Whether `worker` should take a job with this adapter that has waited so long."""
    if resident or waited_s >= (STEAL_LATENCY_S if latency else STEAL_THROUGHPUT_S):
        return True
    return owner(workers, adapter) == worker

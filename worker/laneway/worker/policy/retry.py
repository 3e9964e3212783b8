"""What follows an attempt that failed through no fault of its job."""

from __future__ import annotations

from msgspec import Struct

from laneway.schemas.job import AttemptPolicy

MAX_BACKOFF_MS = 60_000
"""Longest wait between two attempts: a minute is what an engine takes to come up."""


class RetryAfter(Struct, frozen=True):
    """Try again once `delay_ms` have passed."""

    delay_ms: int


class GiveUp(Struct, frozen=True):
    """Attempts are used up: fail the job and dead-letter it."""


RetryDecision = RetryAfter | GiveUp


def after_failure(failures: int, policy: AttemptPolicy) -> RetryDecision:
    """The decision after the `failures`-th failed attempt (1 after the first). Back-off doubles each time."""
    if failures >= policy.max_attempts:
        return GiveUp()
    return RetryAfter(min(MAX_BACKOFF_MS, policy.backoff_ms * 2 ** min(failures - 1, 20)))

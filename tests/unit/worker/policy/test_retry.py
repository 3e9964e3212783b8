"""What follows a failed attempt."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from laneway.schemas.job import AttemptPolicy
from laneway.worker.policy.retry import MAX_BACKOFF_MS, GiveUp, RetryAfter, after_failure

POLICIES = st.builds(AttemptPolicy, max_attempts=st.integers(1, 100), backoff_ms=st.integers(0, 3_600_000))


@given(POLICIES)
def test_a_job_gets_exactly_its_attempts(policy: AttemptPolicy) -> None:
    """`max_attempts` runs in all: after that many failures, and not before, the job is given up."""
    decisions = [after_failure(failures, policy) for failures in range(1, policy.max_attempts + 1)]
    assert all(isinstance(decision, RetryAfter) for decision in decisions[:-1])
    assert isinstance(decisions[-1], GiveUp)


@given(POLICIES, st.integers(1, 1000))
def test_a_job_that_failed_too_often_stays_given_up(policy: AttemptPolicy, beyond: int) -> None:
    """A count beyond the policy, after a crash say, is no way back."""
    assert isinstance(after_failure(policy.max_attempts + beyond, policy), GiveUp)


@given(POLICIES)
def test_back_off_doubles_up_to_a_minute(policy: AttemptPolicy) -> None:
    """Each wait is twice the one before, at most a minute, and never negative."""
    delays = [
        decision.delay_ms
        for failures in range(1, policy.max_attempts)
        if isinstance(decision := after_failure(failures, policy), RetryAfter)
    ]
    assert delays[:1] in ([], [min(MAX_BACKOFF_MS, policy.backoff_ms)])
    for before, after in pairwise(delays):
        assert after == min(MAX_BACKOFF_MS, 2 * before)

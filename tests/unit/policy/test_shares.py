"""Shares: between tenants by virtual token counters, between buckets by deficit round robin."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from laneway.schemas.job import Bucket
from laneway.worker.policy.drr import QUANTUM, Rounds, next_bucket, spend
from laneway.worker.policy.fairness import Fairness, charge, charge_of, least_served, note_waiting


@given(st.randoms(use_true_random=False), st.integers(1, 3000))
def test_two_tenants_that_always_wait_differ_by_one_job_at_most(rng: Random, largest: int) -> None:
    """The bound of virtual token counters: the largest single charge."""
    fairness, charges = Fairness(), [rng.randint(1, largest) for _ in range(200)]
    note_waiting(fairness, {"a", "b", "c"})
    for tokens in charges:
        charge(fairness, least_served(fairness, {"a", "b", "c"}), tokens)
        assert max(fairness.served.values()) - min(fairness.served.values()) <= max(charges)


def test_being_away_saves_nothing_up() -> None:
    """A tenant that comes back starts level with those who stayed, not with a credit."""
    fairness = Fairness()
    note_waiting(fairness, {"a", "b"})
    note_waiting(fairness, {"a"})
    charge(fairness, "a", 10_000)
    note_waiting(fairness, {"a", "b"})
    assert fairness.served["b"] == 10_000


def test_an_output_token_counts_twice() -> None:
    """It is computed alone, a prompt token in bulk."""
    assert charge_of(100, 50) == 200


def test_a_weight_is_a_share() -> None:
    """A tenant of weight 3 gets three times as much."""
    fairness = Fairness(weights={"a": 3.0})
    note_waiting(fairness, {"a", "b"})
    served = {"a": 0, "b": 0}
    for _ in range(400):
        tenant = least_served(fairness, served)
        served[tenant] += 100
        charge(fairness, tenant, 100)
    assert 2.9 < served["a"] / served["b"] < 3.1


@given(st.randoms(use_true_random=False), st.integers(1, 9000))
def test_buckets_that_always_wait_spend_alike(rng: Random, largest: int) -> None:
    """Whatever their jobs cost, two buckets differ by a quantum and a largest job."""
    rounds, spent = Rounds(), dict.fromkeys(Bucket, 0)
    for _ in range(200):
        heads = {bucket: float(rng.randint(1, largest)) for bucket in Bucket}
        bucket = next_bucket(rounds, heads, heads.keys())
        assert bucket is not None
        spend(rounds, bucket, heads[bucket])
        spent[bucket] += int(heads[bucket])
        assert max(spent.values()) - min(spent.values()) <= 2 * (QUANTUM + largest)


def test_an_empty_bucket_saves_nothing_a_blocked_one_keeps_its_purse() -> None:
    """Savings are a claim on waiting, not on the past."""
    rounds = Rounds(purse={Bucket.SHORT: 500.0, Bucket.LONG: 700.0})
    assert next_bucket(rounds, {}, {Bucket.LONG}) is None
    assert rounds.purse == {Bucket.LONG: 700.0}

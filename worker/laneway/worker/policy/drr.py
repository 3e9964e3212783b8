"""Deficit round robin in tokens between the buckets of one tenant: long prompts neither starve nor crowd out.

Each bucket has a purse. The bucket whose turn it is gets a quantum and spends it on its jobs, at their cost in tokens;
what it cannot afford yet it saves for its next turn. Over any time in which two buckets always have work, what they
spent differs by at most one quantum plus one largest job.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec import Struct, field

from laneway.schemas.job import Bucket

QUANTUM = 4096
"""Tokens a bucket gets per turn: the bound of `MEDIUM`, so that each short or medium prompt is affordable in one."""
ORDER = tuple(Bucket)


class Rounds(Struct):
    """Whose turn it is and what each bucket has saved, in tokens."""

    purse: dict[Bucket, float] = field(default_factory=dict)
    turn: int = 0
    fresh: bool = True
    """The bucket whose turn it is has not had its quantum yet."""


def next_bucket(rounds: Rounds, heads: Mapping[Bucket, float], waiting: Collection[Bucket]) -> Bucket | None:
    """The bucket to take a job from. `heads`: the cost of the next admissible job of each bucket that has one.

    Buckets outside `waiting` have no work at all and lose their savings; a bucket that is only blocked keeps them.
    None: no bucket has an admissible job.
    """
    for bucket in ORDER:
        if bucket not in waiting:
            rounds.purse.pop(bucket, None)
            rounds.fresh = rounds.fresh or ORDER[rounds.turn] is bucket
    if not heads:
        return None
    while True:
        bucket = ORDER[rounds.turn]
        if bucket in heads:
            if rounds.fresh:
                rounds.purse[bucket] = rounds.purse.get(bucket, 0.0) + QUANTUM
                rounds.fresh = False
            if heads[bucket] <= rounds.purse[bucket]:
                return bucket
        rounds.turn = (rounds.turn + 1) % len(ORDER)
        rounds.fresh = True


def spend(rounds: Rounds, bucket: Bucket, tokens: float) -> None:
    """A job of `bucket` was taken."""
    rounds.purse[bucket] = rounds.purse.get(bucket, 0.0) - tokens

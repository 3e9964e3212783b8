"""How long answers will be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from laneway.schemas.job import Bucket
from laneway.worker.policy.lengths import ENOUGH, MOST_KINDS, Estimate, Lengths, estimate, record

KIND = ("tenant", None, Bucket.SHORT)


def test_a_job_is_reckoned_with_its_own_limit_until_thirty_answers_are_known() -> None:
    """Before that, a percentile would rest on two or three answers."""
    lengths = Lengths()
    for _ in range(ENOUGH - 1):
        record(lengths, KIND, 10)
    assert estimate(lengths, KIND, 500) == Estimate(500, 500, 1)
    record(lengths, KIND, 10)
    assert estimate(lengths, KIND, 500).most < 13


@given(st.lists(st.integers(1, 4000), min_size=ENOUGH, max_size=90), st.integers(1, 5000))
def test_the_bounds_enclose_four_answers_in_five(answers: list[int], max_tokens: int) -> None:
    """Least <= most, both within the answers seen (up to a bin) and never above the job's own limit."""
    lengths = Lengths()
    for tokens in answers:
        record(lengths, KIND, tokens)
    guess = estimate(lengths, KIND, max_tokens)
    assert 1 <= guess.least <= guess.most <= max_tokens
    assert guess.most <= max(answers) * 1.2 + 1
    assert guess.mean <= min(max_tokens, max(answers))


def test_old_answers_fade() -> None:
    """A hundred or two new answers outweigh the ones before."""
    lengths = Lengths()
    for tokens in [1000] * 100 + [10] * 300:
        record(lengths, KIND, tokens)
    assert estimate(lengths, KIND, 4096).most < 13


def test_memory_is_bounded() -> None:
    """The kind unseen for longest is forgotten."""
    lengths = Lengths()
    for number in range(MOST_KINDS + 10):
        record(lengths, (str(number), None, Bucket.SHORT), 5)
    assert len(lengths.kinds) == MOST_KINDS
    assert ("0", None, Bucket.SHORT) not in lengths.kinds

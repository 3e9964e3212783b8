"""Jobs that wait are offered to others, but not again and again to nobody."""

from __future__ import annotations

from laneway.schemas.ids import JobId
from laneway.worker.policy.offers import LONGEST_S, PATIENCE_S, Offers, claimed, gone

A, B = JobId("a"), JobId("b")


def test_what_comes_back_is_offered_later_and_later() -> None:
    """Twice as late each time, up to a minute."""
    offers = Offers()
    seen = []
    for _ in range(6):
        offers.out = frozenset({A, B})
        claimed(offers, [B])
        seen.append(offers.patience_s)
    assert seen == [10, 20, 40, 60, 60, 60]
    assert seen[-1] == LONGEST_S


def test_what_others_took_makes_the_next_offer_come_soon() -> None:
    """The lanes are empty and nothing came back: somebody is idle. Without an offer, that says nothing."""
    offers = Offers(patience_s=40)
    claimed(offers, [A])
    gone(offers)
    assert offers.patience_s == 40
    offers.out = frozenset({A})
    claimed(offers, [B])
    gone(offers)
    assert offers.patience_s == PATIENCE_S

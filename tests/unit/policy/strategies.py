"""Candidates and engines for property tests of the scheduling policy."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from laneway.schemas.job import SloClass, bucket_of
from laneway.worker.policy.budget import BudgetRule
from laneway.worker.policy.cost import H200_7B
from laneway.worker.policy.headroom import Headroom
from laneway.worker.policy.order import Candidate
from laneway.worker.policy.planner import State
from laneway.worker.policy.slots import Slots

KV_TOKENS = 20_000


def candidate(number: int, **changes: Any) -> Candidate:
    """A short throughput job, with some fields changed."""
    fields: dict[str, Any] = {
        "id": str(number),
        "slo": SloClass.THROUGHPUT,
        "prompt_tokens": 200,
        "output_tokens": 100,
        "most_tokens": 100,
        "since": 0.0,
    }
    fields |= changes
    fields.setdefault("bucket", bucket_of(fields["prompt_tokens"]))
    return Candidate(**fields)


def engine(*, seats: int = 8, kv_tokens: int = KV_TOKENS, max_loras: int = 2) -> State:
    """The policy state of an empty engine."""
    return State(
        headroom=Headroom(seats=seats, kv_tokens=kv_tokens),
        slots=Slots(most=max_loras),
        model=H200_7B,
        rule=BudgetRule(most=2048),
    )


@st.composite
def candidates(draw: st.DrawFn, most: int = 30) -> list[Candidate]:
    """Jobs of all kinds, oldest first."""
    count = draw(st.integers(0, most))
    since = sorted(draw(st.lists(st.floats(0, 50), min_size=count, max_size=count)))
    return [_candidate(draw, number, at) for number, at in enumerate(since)]


def _candidate(draw: st.DrawFn, number: int, since: float) -> Candidate:
    output = draw(st.integers(1, 600))
    return candidate(
        number,
        slo=draw(st.sampled_from(SloClass)),
        prompt_tokens=draw(st.integers(1, 9000)),
        output_tokens=output,
        most_tokens=2 * output,
        since=since,
        due=draw(st.none() | st.floats(0, 200)),
        tenant=draw(st.sampled_from("abc")),
        adapter=draw(st.sampled_from([None, "x", "y", "z"])),
        seats=draw(st.integers(1, 3)),
    )

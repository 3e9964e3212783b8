"""What is refused at submit because of what a model's card says."""

from __future__ import annotations

from typing import Any

import pytest

from laneway.producer import DeadlineInfeasible, UnknownModel
from laneway.producer.models import check_against, check_deadline
from laneway.schemas import InvalidJob, build_job
from laneway.schemas.cards import Floor, ModelCard
from laneway.schemas.ids import new_job_id

CARD = ModelCard(name="demo", context_tokens=10, vocabulary=100)


def check(card: ModelCard = CARD, **fields: Any) -> None:
    check_against(card, build_job(id=new_job_id("demo", 0), model="demo", **fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt_token_ids": [99, 100]}, "prompt_token_ids: expected token ids below 100, the vocabulary of demo, got 100"),
        ({"prompt": "x", "sampling": {"stop_token_ids": [100]}}, "sampling.stop_token_ids: expected token ids below 100"),
        ({"prompt": "x", "sampling": {"allowed_token_ids": [5, 999]}}, "sampling.allowed_token_ids: expected token ids below"),
        ({"prompt": "x", "sampling": {"logit_bias": {999: 1}}}, "sampling.logit_bias: expected token ids below 100"),
        ({"prompt_token_ids": [1] * 10}, "prompt: expected at most 9 tokens for demo, got 10"),
        ({"prompt": "x", "prompt_tokens": 10}, "prompt: expected at most 9 tokens for demo, got 10"),
    ],
)  # fmt: skip
@pytest.mark.case("C42")
def test_what_the_model_cannot_hold_is_refused(fields: dict[str, Any], message: str) -> None:
    """A worker would refuse it later, after it waited in a lane."""
    with pytest.raises(InvalidJob) as caught:
        check(**fields)
    assert str(caught.value).startswith(message)


def test_what_fits_or_is_only_estimated_passes() -> None:
    """An estimate is no reason to refuse, and neither is a card that says nothing."""
    check(prompt_token_ids=[99] * 9)
    check(prompt="x" * 3000)
    check(ModelCard(name="demo"), prompt_token_ids=[10**6] * 5000)


def test_an_unknown_model_is_answered_with_the_nearest_known_one() -> None:
    """A typing mistake is seen at a glance; a long list of models stays short."""
    error = UnknownModel("dmeo", ["demo", *(f"org/model-{number}" for number in range(20))])
    assert "did you mean 'demo'?" in str(error)
    assert str(error).count("org/") == 7


FLOOR = Floor(prompt_s=0.001, token_s=0.01)


def demand(card_floor: Floor | None = FLOOR, **fields: Any) -> None:
    card = ModelCard(name="demo", floor=card_floor)
    check_deadline(card, build_job(id=new_job_id("demo", 0), model="demo", **fields))


@pytest.mark.parametrize(
    ("fields", "least"),
    [
        ({"prompt": "x"}, 10),
        ({"prompt": "x", "sampling": {"min_tokens": 50}}, 500),
        ({"prompt_token_ids": [1] * 200}, 210),
        ({"prompt": "x", "prompt_tokens": 200, "sampling": {"min_tokens": 2}}, 220),
    ],
)
@pytest.mark.case("C34")
def test_a_deadline_below_what_an_idle_engine_takes_is_refused(fields: dict[str, Any], least: int) -> None:
    """One millisecond less than a counted prompt and the tokens that must come; the error says what would do."""
    demand(deadline_ms=least, **fields)
    with pytest.raises(DeadlineInfeasible) as caught:
        demand(deadline_ms=least - 1, **fields)
    assert str(caught.value) == (
        f"deadline_ms: expected at least {least}, which demo needs when idle, got {least - 1}"
    )
    assert caught.value.least_ms == least


def test_a_guess_is_no_reason_to_refuse_a_deadline() -> None:
    """Neither `max_tokens` nor an estimate of the prompt's length; nor is anything where no worker has measured."""
    demand(deadline_ms=10, prompt="x" * 100_000, sampling={"max_tokens": 4000})
    demand(prompt_token_ids=[1] * 4000)
    demand(None, deadline_ms=1, prompt="x", sampling={"min_tokens": 4000})
    demand(Floor(), deadline_ms=1, prompt="x", sampling={"min_tokens": 4000})

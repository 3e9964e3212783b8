"""What every engine promises of an answer that goes on from tokens of its own."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.support.builders import make_job
from tests.support.engines import PROMPT, Answers, Bench

from laneway.schemas.job import Job
from laneway.worker.engine.demo_model import demo_model

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.filterwarnings("default")]

ONLY = 40
"""The one token that jobs here may answer with, so that rounding decides nothing."""


def repeating(tokens: int, token: int = ONLY, **sampling: object) -> Job:
    return make_job(
        prompt=PROMPT,
        sampling={"temperature": 0.0, "max_tokens": tokens, "allowed_token_ids": [token], **sampling},
    )


async def go_on(bench: Bench, job: Job, generated: Sequence[int]) -> Answers:
    """The rest of the answer to `job`."""
    prepared = await bench.engine.prepare(job)
    extended = bench.engine.extend(prepared, generated)
    assert extended.prompt_token_ids == (*prepared.prompt_token_ids, *generated)
    return Answers([pieces async for pieces in bench.engine.generate("rest", extended, 0)])


async def test_the_rest_joins_to_the_whole(bench: Bench) -> None:
    """Wherever it was cut: texts, tokens and the reason of the end are those of the whole answer."""
    job = repeating(8)
    whole = await bench.run(job)
    for cut in (1, 4, 7):
        rest = await go_on(bench, job, whole.tokens()[:cut])
        assert rest.tokens() == whole.tokens()[cut:]
        assert whole.text().endswith(rest.text())
        assert len(rest.text()) * 8 == len(whole.text()) * (8 - cut)
        assert rest.reason() == whole.reason() == "length"


async def test_a_stop_token_ends_the_rest(bench: Bench) -> None:
    """It is told as the reason, and its text is not part of the answer."""
    rest = await go_on(bench, repeating(20, stop_token_ids=[ONLY]), [41, 42])
    assert rest.tokens() == (ONLY,)
    assert (rest.reason(), rest.pieces[-1].stop_reason, rest.text()) == ("stop", ONLY, "")


@pytest.mark.vllm
@pytest.mark.timeout(400)
@pytest.mark.parametrize("text", ["a 🦉 and a 🐈‍⬛ said", "漢字かな交じり文"])
async def test_a_character_that_the_cut_divides_comes_out_whole(vllm_bench: Bench, text: str) -> None:
    """Tokens may end within a character. Cut after each of them, the texts of both parts join to the same."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(demo_model())
    tokens = tokenizer.encode(text, add_special_tokens=False)
    spoken = ""
    divided = 0
    for cut, token in enumerate(tokens):
        if cut == 0:
            rest = await vllm_bench.run(repeating(1, token))
        else:
            rest = await go_on(vllm_bench, repeating(cut + 1, token), tokens[:cut])
        assert rest.tokens() == (token,)
        divided += not rest.text()
        spoken += rest.text()
    assert spoken == text
    assert divided, "no token ended within a character"

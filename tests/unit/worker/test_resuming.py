"""How an attempt goes on from what earlier attempts generated."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.unit.worker.test_attempt import SQL, Bench, make_job, outcome_of

from laneway.schemas.events import Restarted, Started, Tokens
from laneway.schemas.job import Job
from laneway.schemas.outcome import Cancelled, Completed, Result
from laneway.schemas.record import Kept
from laneway.schemas.sampling import Sampling
from laneway.worker.engine.fake_engine import FakeEngine, FakeEngineSettings
from laneway.worker.policy.resume import remaining, why_not_resumable
from laneway.worker.ports import Piece
from laneway.worker.verdicts import Settle

TOKENS = 6
JOB = make_job(sampling=Sampling(max_tokens=TOKENS, ignore_eos=True))


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    engine = FakeEngine(FakeEngineSettings(context_tokens=64))
    await engine.start(lambda step, share: None)
    yield Bench(engine)
    await engine.stop()


async def run(bench: Bench, job: Job, **claim: Any) -> tuple[Result, list[Kept]]:
    """The result, and what the attempt had kept."""
    kept: list[Kept] = []
    bench.events.clear()
    attempt = bench.attempt(job, keep=lambda seq, event: kept.append(event), **claim)
    verdict = await attempt.run()
    assert isinstance(verdict, Settle)
    return verdict.result, kept


@pytest.mark.parametrize("cut", range(1, TOKENS))
async def test_an_answer_that_was_cut_ends_as_if_it_had_not_been(bench: Bench, cut: int) -> None:
    """Wherever the cut is: text, tokens, usage and finish reason are those of an undisturbed run, events go on."""
    whole, kept = await run(bench, JOB)
    resumed, more = await run(bench, JOB, attempt=2, kept=tuple(kept[:cut]))
    assert resumed.outcome == whole.outcome
    assert resumed.timeline.first_token_ms == whole.timeline.first_token_ms
    started, *tokens = bench.events
    assert started == Started(job_id=JOB.id, attempt=2, resumes_at=cut, origin=1)
    assert [event.seq for event in tokens if isinstance(event, Tokens)] == list(range(cut, TOKENS))
    assert [event.text for event in [*kept[:cut], *more]] == [event.text for event in kept]
    assert [fact.event for fact in bench.facts].count("job.first_token") == 1


async def test_an_answer_may_be_cut_more_than_once(bench: Bench) -> None:
    """The third attempt goes on from what the first and the second generated."""
    whole, kept = await run(bench, JOB)
    _, more = await run(bench, JOB, attempt=2, kept=tuple(kept[:2]))
    third, _ = await run(bench, JOB, attempt=3, kept=(*kept[:2], *more[:2]))
    assert third.outcome == whole.outcome
    assert bench.events[0] == Started(job_id=JOB.id, attempt=3, resumes_at=4, origin=1)


async def test_a_whole_answer_is_settled_without_the_engine(bench: Bench) -> None:
    """Its worker was lost between the last token and the result, or before it could tell that it was the last."""
    whole, kept = await run(bench, JOB)
    bench.entered = 0
    unended = [*kept[:-1], Kept(attempt=1, text=kept[-1].text, token_ids=kept[-1].token_ids)]
    for left in (kept, unended):
        again, _ = await run(bench, JOB, attempt=2, kept=tuple(left))
        assert again.outcome == whole.outcome
        assert bench.events == []
    assert bench.entered == 0


async def test_a_stop_token_at_the_cut_is_the_end(bench: Bench) -> None:
    """Nothing is generated after it, and its text is not part of the answer."""
    _, kept = await run(bench, JOB)
    stop = kept[3].token_ids[0]
    job = make_job(id=JOB.id, sampling=Sampling(max_tokens=TOKENS, stop_token_ids=(stop,)))
    whole, kept = await run(bench, job)
    assert isinstance(whole.outcome, Completed)
    assert whole.outcome.choices[0].stop_reason == stop
    again, _ = await run(bench, job, attempt=2, kept=tuple(kept))
    assert again.outcome == whole.outcome


async def test_an_end_that_comes_after_the_last_token_is_the_end(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine may tell it by itself: whoever takes over then does not generate beyond it."""
    generate = FakeEngine.generate

    async def apart(self: FakeEngine, *call: Any) -> AsyncIterator[Sequence[Piece]]:
        async for pieces in generate(self, *call):
            for piece in pieces:
                yield [replace(piece, finish_reason=None)]
                if piece.finish_reason:
                    yield [Piece(finish_reason="stop")]

    monkeypatch.setattr(FakeEngine, "generate", apart)
    whole, kept = await run(bench, JOB)
    longer = make_job(id=JOB.id, sampling=Sampling(max_tokens=3 * TOKENS, ignore_eos=True))
    again, _ = await run(bench, longer, attempt=2, kept=tuple(kept))
    assert again.outcome == whole.outcome


async def test_the_context_bounds_a_resumed_answer_as_it_bounds_a_whole_one(bench: Bench) -> None:
    """Without `max_tokens` the answer ends where the context does, whatever part of it was prompt the second time."""
    job = make_job(sampling=Sampling(max_tokens=1000, ignore_eos=True))
    whole, kept = await run(bench, job)
    for cut in (1, len(kept) - 1):
        again, _ = await run(bench, job, attempt=2, kept=tuple(kept[:cut]))
        assert again.outcome == whole.outcome


async def test_an_answer_of_another_adapter_version_is_not_continued(bench: Bench) -> None:
    """One answer comes from one adapter: it begins anew, and says so."""
    job = make_job(lora=SQL, sampling=JOB.sampling)
    whole, kept = await run(bench, job)
    again, _ = await run(bench, job, attempt=2, kept=tuple(kept[:3]))
    assert again.outcome == whole.outcome
    stale = (Kept(attempt=1, text="?", token_ids=(1,), lora_digest="d0"), *kept[1:3])
    anew, more = await run(bench, job, attempt=2, kept=stale)
    assert anew.outcome == whole.outcome
    assert bench.events[:2] == [Restarted(job_id=job.id, attempt=2), Started(job_id=job.id, attempt=2)]
    assert (len(more), more[0].attempt, more[0].lora_digest) == (TOKENS, 2, "d1")


async def test_tokens_that_this_engine_does_not_know_are_not_continued(bench: Bench) -> None:
    """They would end the engine: the answer begins anew."""
    alien = (Kept(attempt=1, text="?", token_ids=(10**9,)),)
    result, _ = await run(bench, JOB, attempt=2, kept=alien)
    assert isinstance(result.outcome, Completed)
    assert isinstance(bench.events[0], Restarted)


async def test_a_job_that_is_cancelled_while_it_waits_keeps_what_it_has(bench: Bench) -> None:
    """The outcome of a cut and cancelled job holds what was generated before the cut."""
    _, kept = await run(bench, JOB)
    verdict = await bench.attempt(
        JOB, keep=lambda seq, event: None, attempt=2, kept=tuple(kept[:3]), cancelled=True
    ).run()
    outcome = outcome_of(verdict)
    assert isinstance(outcome, Cancelled)
    assert outcome.choices[0].token_ids == tuple(event.token_ids[0] for event in kept[:3])
    assert outcome.usage is not None
    assert outcome.usage.output_tokens == 3


async def test_a_job_that_cannot_go_on_starts_again(bench: Bench) -> None:
    """Whatever is kept: with a seed the answer begins anew."""
    job = make_job(sampling=Sampling(max_tokens=TOKENS, seed=7, ignore_eos=True))
    assert why_not_resumable(job) is not None
    await bench.attempt(job, attempt=2, kept=(Kept(attempt=1, text="x", token_ids=(1,)),)).run()
    assert isinstance(bench.events[0], Restarted)


def _samplings() -> Sequence[Sampling]:
    return [
        Sampling(n=2), Sampling(seed=0), Sampling(presence_penalty=0.1), Sampling(frequency_penalty=-1.0),
        Sampling(repetition_penalty=1.1), Sampling(logprobs=0), Sampling(prompt_logprobs=1),
        Sampling(bad_words=("x",)), Sampling(stop=("x",)),
        Sampling(skip_special_tokens=False, spaces_between_special_tokens=False),
    ]  # fmt: skip


@pytest.mark.parametrize("sampling", _samplings())
def test_what_a_new_prompt_does_not_restore_is_not_resumed(sampling: Sampling) -> None:
    """Each with a reason in words."""
    assert why_not_resumable(make_job(sampling=sampling))


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0.0),
        Sampling(temperature=1.5, top_p=0.5, top_k=4, min_p=0.1),
        Sampling(stop_token_ids=(1,), min_tokens=3, ignore_eos=True),
        Sampling(allowed_token_ids=(1, 2), logit_bias={1: 2.0}),
    ],
)
def test_what_looks_at_one_step_only_is_resumed(sampling: Sampling) -> None:
    """Also without a seed at a temperature: nobody was promised which answer it would be."""
    assert why_not_resumable(make_job(sampling=sampling)) is None


@given(st.integers(1, 100), st.integers(0, 100), st.integers(0, 99))
def test_limits_shrink_by_what_is_there(most: int, least: int, generated: int) -> None:
    """Together the parts have as many tokens as the whole would."""
    generated = min(generated, most - 1)
    left = remaining(Sampling(max_tokens=most, min_tokens=min(least, most)), generated)
    assert left.max_tokens == most - generated
    assert left.min_tokens == max(0, min(least, most) - generated)

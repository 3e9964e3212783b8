"""One prompt of each length through the engine before the worker calls itself ready: first runs are slow runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from laneway.schemas.ids import new_job_id
from laneway.schemas.job import BUCKET_BOUNDS, Bucket, Job, TokenIds
from laneway.schemas.sampling import Sampling
from laneway.worker.errors import AttemptFailed, EngineDied, EngineStartFailed, JobRefused
from laneway.worker.observer import mean_step
from laneway.worker.policy.cost import CostModel, StepLoad, fit
from laneway.worker.ports import Engine, EngineInfo
from laneway.worker.telemetry import Telemetry

ANSWER_TOKENS = 4
"""Tokens of each answer: the first comes from the prefill, the others from decode steps."""

PROFILE_TOKENS = 4
"""Tokens of each answer of the profile: three decode steps beside one or two of prefill."""


def lengths(info: EngineInfo) -> Iterator[tuple[Bucket, int]]:
    """Prompt lengths, one per bucket: just inside it, in the context, and not beyond two steps of prefill.

    A prompt of more than two steps runs nothing that the second step did not.
    """
    above = 0
    for bucket in Bucket:
        yield bucket, max(1, min(above + 32, info.context_tokens - ANSWER_TOKENS, 2 * info.step_tokens))
        above = BUCKET_BOUNDS.get(bucket, above)


async def warm_up(engine: Engine, model: str, telemetry: Telemetry) -> None:
    """Run one prompt per bucket, all at once. A prompt that the engine refuses is skipped.

    Raises:
        EngineStartFailed: the engine died of it.
    """
    runs = {length: _run(engine, model, length) for _, length in lengths(engine.info)}
    outcomes = await asyncio.gather(*runs.values(), return_exceptions=True)
    for length, outcome in zip(runs, outcomes, strict=True):
        if isinstance(outcome, EngineDied):
            raise EngineStartFailed(f"the engine died while it warmed up with {length} tokens: {outcome}")
        if isinstance(outcome, JobRefused | AttemptFailed):
            telemetry.tell("warmup.skipped", tokens=length, code=getattr(outcome, "code", "attempt_failed"))
        elif outcome is not None:
            raise outcome


async def profile(engine: Engine, model: str) -> CostModel | None:
    """What steps cost, by a few small loads that differ in what they are made of. None: it could not be measured.

    Takes some 30 steps.

    Raises:
        EngineStartFailed: the engine died of it.
    """
    info = engine.info
    rows: list[tuple[StepLoad, float]] = []
    most = max(1, min(info.step_tokens, info.context_tokens) - PROFILE_TOKENS)
    crowd = max(1, min(8, info.seats))
    for jobs, length in ((1, min(16, most)), (crowd, min(16, most)), (1, most), (crowd, max(1, most // 4))):
        before = engine.stats().timed
        runs = [_run(engine, model, length, PROFILE_TOKENS, first=len(rows) * 100 + n) for n in range(jobs)]
        outcomes = await asyncio.gather(*runs, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, EngineDied):
                raise EngineStartFailed(f"the engine died while its steps were measured: {outcome}")
            if isinstance(outcome, BaseException) and not isinstance(outcome, JobRefused | AttemptFailed):
                raise outcome
        sums = engine.stats().timed.since(before)
        if not sums.steps or sums.seconds <= 0:
            return None
        rows.append(mean_step(sums, info.kv_tokens))
    return fit(rows).model


async def _run(
    engine: Engine, model: str, length: int, answer: int = ANSWER_TOKENS, *, first: int = 1
) -> None:
    """A prompt that begins with the token `first`, so that no other one's cache serves it."""
    job = Job(
        id=new_job_id(model, 0),
        model=model,
        payload=TokenIds(ids=(first % engine.info.vocabulary, *(1,) * (length - 1))),
        sampling=Sampling(max_tokens=answer, temperature=0.0, ignore_eos=True),
        prompt_tokens=length,
        prompt_counted=True,
    )
    prepared = await engine.prepare(job)
    async for _ in engine.generate(f"warm-up-{length}-{first}", prepared, 0):
        pass

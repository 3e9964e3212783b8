"""One prompt of each length through the engine before the worker calls itself ready: first runs are slow runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from laneway.schemas.ids import new_job_id
from laneway.schemas.job import BUCKET_BOUNDS, Bucket, Job, TokenIds
from laneway.schemas.sampling import Sampling
from laneway.worker.errors import AttemptFailed, EngineDied, EngineStartFailed, JobRefused
from laneway.worker.ports import Engine, EngineInfo
from laneway.worker.telemetry import Telemetry

ANSWER_TOKENS = 4
"""Tokens of each answer: the first comes from the prefill, the others from decode steps."""


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


async def _run(engine: Engine, model: str, length: int) -> None:
    job = Job(
        id=new_job_id(model, 0),
        model=model,
        payload=TokenIds(ids=(1,) * length),
        sampling=Sampling(max_tokens=ANSWER_TOKENS, temperature=0.0, ignore_eos=True),
        prompt_tokens=length,
        prompt_counted=True,
    )
    prepared = await engine.prepare(job)
    async for _ in engine.generate(f"warm-up-{length}", prepared, 0):
        pass

"""Jobs and results for tests, in one line."""

from __future__ import annotations

import time
from typing import Any

from laneway.schemas.build import build_job
from laneway.schemas.ids import JobId, new_job_id
from laneway.schemas.job import Job
from laneway.schemas.outcome import Choice, Completed, Failed, JobError, Result, Timeline, Usage

MODEL = "demo"


def make_job(model: str = MODEL, partition: int = 0, **fields: Any) -> Job:
    """A checked job with a fresh id; `fields` are those of `build_job`. The prompt is `Hello` unless given."""
    if not {"prompt", "prompt_token_ids", "messages"} & fields.keys():
        fields["prompt"] = "Hello"
    return build_job(id=fields.pop("id", None) or new_job_id(model, partition), model=model, **fields)


def completed(job_id: JobId, text: str = "done", attempt: int = 1) -> Result:
    """A completion of one answer."""
    outcome = Completed(choices=(Choice(text=text, finish_reason="stop"),), usage=Usage(output_tokens=1))
    return Result(job_id=job_id, outcome=outcome, model=MODEL, attempt=attempt, timeline=_ended())


def failed(job_id: JobId, code: str = "engine_died", attempt: int = 1) -> Result:
    """A failure with that code."""
    outcome = Failed(error=JobError(code=code, message="it did not work"))
    return Result(job_id=job_id, outcome=outcome, model=MODEL, attempt=attempt, timeline=_ended())


def _ended() -> Timeline:
    return Timeline(ended_ms=time.time_ns() // 1_000_000)

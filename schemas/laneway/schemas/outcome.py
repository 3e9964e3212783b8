"""How a job can end. Exactly one outcome is stored for each accepted job."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from laneway.schemas.ids import AdapterId, JobId, WorkerId
from laneway.schemas.state import JobState


class Usage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens that a job took."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache."""
    output_tokens: int = 0


class TokenLogprob(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The log-probability of one token; minus infinity is stored as -9999.0, since JSON has no infinity."""

    token_id: int
    token: str
    logprob: float
    top: tuple[tuple[int, str, float], ...] = ()


class Choice(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One answer. `finish_reason` is None only in what was generated before a job was cut off."""

    index: int = 0
    text: str = ""
    token_ids: tuple[int, ...] = ()
    finish_reason: str | None = None
    """`stop` or `length`."""
    stop_reason: str | int | None = None
    """The stop string or token id that ended it, where one did."""
    logprobs: tuple[TokenLogprob, ...] | None = None


class JobError(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a job failed: a stable code for programs, one sentence for people, never the prompt."""

    code: str
    message: str
    field: str | None = None


class Completed(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="completed"):
    """The requested thing, from the requested adapter version, to a natural end."""

    choices: tuple[Choice, ...]
    usage: Usage
    lora: AdapterId | None = None
    lora_digest: str | None = None
    """Content digest of the adapter that answered."""


class Failed(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="failed"):
    """The job's own error, or an engine error that outlived all attempts."""

    error: JobError
    choices: tuple[Choice, ...] = ()
    usage: Usage | None = None


class Cancelled(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="cancelled"):
    """Stopped on request; `choices` holds what had been generated."""

    choices: tuple[Choice, ...] = ()
    usage: Usage | None = None


class Expired(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="expired"):
    """The deadline passed, or could not be met any more; `choices` holds what had been generated."""

    choices: tuple[Choice, ...] = ()
    usage: Usage | None = None


Outcome = Completed | Failed | Cancelled | Expired


class Timeline(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When things happened to a job, in milliseconds of Redis' clock since 1970. 0: it never did.

    Claim and start are those of the last attempt; the first token may be an earlier one's, where a job went on from it.
    """

    submitted_ms: int = 0
    claimed_ms: int = 0
    started_ms: int = 0
    first_token_ms: int = 0
    ended_ms: int = 0

    @property
    def ttft_ms(self) -> int | None:
        """Time to first token, counted from acceptance in Redis."""
        return self.first_token_ms - self.submitted_ms if self.first_token_ms else None


class Result(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is stored when a job ends."""

    job_id: JobId
    outcome: Outcome
    model: str = ""
    attempt: int = 0
    worker: WorkerId = WorkerId("")
    timeline: Timeline = Timeline()
    metadata: dict[str, str] = {}
    extra: dict[str, Any] = {}
    """Room for fields of newer releases."""

    @property
    def state(self) -> JobState:
        """The final state that the outcome stands for."""
        match self.outcome:
            case Completed():
                return JobState.COMPLETED
            case Failed():
                return JobState.FAILED
            case Cancelled():
                return JobState.CANCELLED
            case Expired():
                return JobState.EXPIRED

    @property
    def text(self) -> str:
        """Text of the first answer, or of what there is of it; empty where nothing was generated."""
        return self.outcome.choices[0].text if self.outcome.choices else ""

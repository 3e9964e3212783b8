"""What a consumer may see while a job runs. Events of a job carry its attempt; tokens carry a sequence number."""

from __future__ import annotations

from msgspec import Struct

from laneway.schemas.ids import JobId


class Started(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="started"):
    """An attempt entered the engine."""

    job_id: JobId
    attempt: int
    resumes_at: int = 0
    """Sequence number of its first token event: above 0 where it goes on from the tokens of an earlier attempt."""
    origin: int = 0
    """Attempt that token event 0 of this answer comes from, where `resumes_at` is above 0."""


class Tokens(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="tokens"):
    """What one engine step added to an answer. `seq` counts from 0 within an attempt, without gaps."""

    job_id: JobId
    attempt: int
    seq: int
    text: str
    token_ids: tuple[int, ...] = ()
    index: int = 0
    """Which of the `n` answers."""


class Restarted(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="restarted"):
    """A later attempt begins anew: forget the tokens of the earlier ones."""

    job_id: JobId
    attempt: int


class Ended(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="ended"):
    """The job's result is stored and can be read. `state` is the word of its final state."""

    job_id: JobId
    attempt: int
    state: str


Event = Started | Tokens | Restarted | Ended

"""What may come of an attempt: reasons to break it off, and verdicts on its job."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from laneway.schemas.outcome import JobError, Result


class Stop(Enum):
    """Why an attempt is broken off."""

    CANCEL = "cancel"
    DEADLINE = "deadline"
    LOST = "lost"
    """The lease is gone: the job is somebody else's."""
    HAND_BACK = "hand_back"
    """The worker ends, unhurried."""
    ENGINE_DIED = "engine_died"


class Settle(Struct, frozen=True):
    """Store the result and remove the job from its lane."""

    result: Result


class Retry(Struct, frozen=True):
    """Offer the job again later; the attempt counts as failed."""

    error: JobError
    delay_ms: int


class Lose(Struct, frozen=True):
    """The engine died with the job in it, and with others: offer it again at once, as one of the suspects."""

    error: JobError


class DeadLetter(Struct, frozen=True):
    """Attempts are used up: store the failure and keep the job aside."""

    result: Result


class HandBack(Struct, frozen=True):
    """Return the job to its lane unharmed."""


class Drop(Struct, frozen=True):
    """Do nothing: the job is not this worker's any more."""


Verdict = Settle | Retry | Lose | DeadLetter | HandBack | Drop

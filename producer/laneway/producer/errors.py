"""What a producer can run into. All of it is a `LanewayError`: one sentence, and fields for programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from laneway.schemas.errors import InvalidJob, LanewayError, UsageError, nearest, shown
from laneway.schemas.ids import JobId

if TYPE_CHECKING:
    from laneway.producer.submitting import Submitted


class InvalidSettings(UsageError):
    """The producer was configured with something it cannot work with: names the setting and the value."""

    def __init__(self, setting: str, expected: str, given: object) -> None:
        super().__init__(f"{setting}: expected {expected}, got {shown(given)}")


class ProducerClosed(LanewayError):
    """The producer was closed; nothing can be asked of it any more."""

    def __init__(self) -> None:
        super().__init__("this producer is closed")


class QueueUnavailable(LanewayError):
    """The server is not there, or refused. What was asked did not happen, or was a question that may be repeated."""


class QueueFull(LanewayError):
    """The job was not accepted: a bound of the queue is reached. Nothing was stored."""

    def __init__(self, limit: str, retry_after: float) -> None:
        self.limit = limit
        """Which bound, in words."""
        self.retry_after = retry_after
        """Seconds after which trying again makes sense."""
        super().__init__(f"the queue is full ({limit}): try again in {retry_after:g} s")


class OutboxFull(LanewayError):
    """The job was not accepted: the outbox holds as many as it may whose outcome has not been seen."""

    def __init__(self, bound: str) -> None:
        self.bound = bound
        """Which bound, in words."""
        super().__init__(f"the outbox is full ({bound}): it empties as outcomes are seen")


class OutboxUnusable(LanewayError):
    """The file of the outbox cannot be had, read or written. The job was not accepted."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"outbox {shown(path)}: {reason}")


class SubmitUncertain(LanewayError):
    """Both replies to a submit were lost: the job may or may not be in the queue, once at most.

    `producer.status(error.job_id)` tells which. With an idempotency key the same submit may simply be made again.
    """

    def __init__(self, job_id: JobId, idempotency_key: str | None) -> None:
        self.job_id = job_id
        self.idempotency_key = idempotency_key
        again = "" if idempotency_key is None else ", or submit it again under the same idempotency key"
        super().__init__(f"no reply to submit: ask for the status of {job_id}{again}")


class SubmitStopped(LanewayError):
    """`submit_many` could not go on. Everything before `index` was accepted and has been handed out.

    `cause` says why. `accepted` lists jobs after `index` that had travelled in the same chunk and were accepted:
    pairs of index and `Submitted`. With idempotency keys it is safe to submit everything from `index` on again.
    """

    def __init__(self, index: int, cause: LanewayError, accepted: Sequence[tuple[int, Submitted]]) -> None:
        self.index = index
        self.cause = cause
        self.accepted = tuple(accepted)
        super().__init__(f"job {index} of submit_many: {cause}")


class UnknownModel(InvalidJob):
    """No worker has ever served a model of this name here."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.known = tuple(sorted(known))
        served = ", ".join(self.known[:8]) + (", ..." if len(self.known) > 8 else "")
        super().__init__("model", f"a model that is served here: {served}{nearest(name, self.known)}", name)


class DeadlineInfeasible(InvalidJob):
    """The model takes longer than the deadline, even on an engine that has nothing else to do."""

    def __init__(self, model: str, least_ms: int, given_ms: int) -> None:
        self.least_ms = least_ms
        """The shortest deadline that would have been accepted."""
        super().__init__("deadline_ms", f"at least {least_ms}, which {model} needs when idle", given_ms)


class JobNotFound(LanewayError):
    """Nothing is known of the job: never submitted here, or its result has been kept for as long as promised."""

    def __init__(self, job_id: JobId) -> None:
        self.job_id = job_id
        super().__init__(f"no job {job_id} here: never accepted, or its result has expired")


class LetterNotFound(LanewayError):
    """No such dead letter: the job did not end there, or the letter was replayed or purged."""

    def __init__(self, letter_id: str) -> None:
        self.letter_id = letter_id
        super().__init__(f"no dead letter {shown(letter_id)} here: never one, or replayed or purged since")


class LetterUnreadable(LanewayError):
    """The dead letter holds no job that this release can read, so there is nothing to replay."""

    def __init__(self, letter_id: str, reason: str) -> None:
        self.letter_id = letter_id
        self.reason = reason
        super().__init__(f"dead letter {letter_id} cannot be replayed: {reason}")


class ResultTimeout(LanewayError, TimeoutError):
    """The job had not ended in time. It goes on; ask again with the same id."""

    def __init__(self, job_id: JobId, timeout: float, trouble: LanewayError | None = None) -> None:
        self.job_id = job_id
        self.timeout = timeout
        reason = f" ({trouble})" if trouble is not None else ""
        super().__init__(f"job {job_id} had not ended after {timeout:g} s{reason}")

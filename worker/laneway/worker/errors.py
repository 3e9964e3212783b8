"""Errors of the worker. None of redis' or vLLM's exceptions crosses the `queue` or `engine` folder."""

from __future__ import annotations

from laneway.schemas.errors import LanewayError, UsageError


class SettingsError(UsageError):
    """The worker was configured with something it cannot run on: names the option and the value."""


class QueueUnavailable(LanewayError):
    """The server did not do what was asked in time, or is not there. Trying again later is right."""

    missing = False
    """Whether a lane or its consumer group is gone: it must be made anew first."""


class QueueUnfit(LanewayError):
    """The server is there but cannot hold jobs safely: too old, or configured to evict or refuse."""


class EngineDied(LanewayError):
    """The engine is gone: nothing in it will end. The process must hand its jobs back and exit."""


class EngineStartFailed(LanewayError):
    """The engine did not come up: a wrong model folder, too little memory, a missing package."""


class JobRefused(LanewayError):
    """One job cannot run, and never will here: its own fault, or something it names does not exist.

    `code` is a stable word for programs, the message one sentence for people without any of the prompt.
    """

    def __init__(self, code: str, message: str, field: str | None = None) -> None:
        self.code = code
        self.field = field
        super().__init__(message)


class AttemptFailed(LanewayError):
    """One attempt at a job failed through no fault of the job; the engine lives and the job may be repeated."""


class DeadlineOutOfReach(LanewayError):
    """One job cannot end before its deadline any more, even alone in the engine."""


class EmbeddedServerFailed(LanewayError):
    """The embedded server cannot run here: no binary, a taken port, or a folder in use."""

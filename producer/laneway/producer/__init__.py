"""What an application needs to put jobs into the queue and to hear how they end."""

from laneway.producer.board import JobStatus
from laneway.producer.client import Producer
from laneway.producer.dead_letters import DeadLetter
from laneway.producer.errors import (
    DeadlineInfeasible,
    InvalidSettings,
    JobNotFound,
    LetterNotFound,
    LetterUnreadable,
    OutboxFull,
    OutboxUnusable,
    ProducerClosed,
    QueueFull,
    QueueUnavailable,
    ResultTimeout,
    SubmitStopped,
    SubmitUncertain,
    UnknownModel,
)
from laneway.producer.fields import JobFields
from laneway.producer.settings import ProducerSettings
from laneway.producer.submitting import Submitted
from laneway.producer.sync import SyncProducer
from laneway.schemas.errors import InvalidJob, LanewayError

__all__ = [
    "DeadLetter",
    "DeadlineInfeasible",
    "InvalidJob",
    "InvalidSettings",
    "JobFields",
    "JobNotFound",
    "JobStatus",
    "LanewayError",
    "LetterNotFound",
    "LetterUnreadable",
    "OutboxFull",
    "OutboxUnusable",
    "Producer",
    "ProducerClosed",
    "ProducerSettings",
    "QueueFull",
    "QueueUnavailable",
    "ResultTimeout",
    "SubmitStopped",
    "SubmitUncertain",
    "Submitted",
    "SyncProducer",
    "UnknownModel",
]  # fmt: skip

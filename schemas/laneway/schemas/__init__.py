"""The contract between applications and workers: jobs, outcomes, events, keys and the wire."""

from laneway.schemas.build import build_job, check_job
from laneway.schemas.errors import InvalidJob, LanewayError, UnreadableEntry
from laneway.schemas.events import Ended, Event, Restarted, Started, Tokens
from laneway.schemas.ids import AdapterId, JobId, ProducerId, WorkerId
from laneway.schemas.job import (
    AttemptPolicy,
    Bucket,
    Chat,
    ChatMessage,
    Job,
    Payload,
    Prompt,
    SloClass,
    TokenIds,
)
from laneway.schemas.outcome import (
    Cancelled,
    Choice,
    Completed,
    Expired,
    Failed,
    JobError,
    Outcome,
    Result,
    Timeline,
    Usage,
)
from laneway.schemas.sampling import Sampling, StructuredOutput
from laneway.schemas.state import FINAL_STATES, JobState

__all__ = [
    "FINAL_STATES", "AdapterId", "AttemptPolicy", "Bucket", "Cancelled", "Chat", "ChatMessage", "Choice", "Completed",
    "Ended", "Event", "Expired", "Failed", "InvalidJob", "Job", "JobError", "JobId", "JobState", "LanewayError",
    "Outcome", "Payload", "ProducerId", "Prompt", "Restarted", "Result", "Sampling", "SloClass", "Started",
    "StructuredOutput", "Timeline", "TokenIds", "Tokens", "UnreadableEntry", "Usage", "WorkerId", "build_job", "check_job",
]  # fmt: skip

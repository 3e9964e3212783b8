"""What is asked: the job, its payload and the promises asked for it."""

from __future__ import annotations

from enum import Enum
from typing import Any

from msgspec import Struct, field

from laneway.schemas.ids import AdapterId, JobId
from laneway.schemas.sampling import Sampling


class SloClass(Enum):
    """The service class of a job: what it needs from the schedule."""

    LATENCY = "latency"
    """Somebody waits for the first token."""

    THROUGHPUT = "throughput"
    """Only the time by which all of them are done matters."""


class Bucket(Enum):
    """How long a prompt is. Buckets keep long prompts out of the way of short ones and price a job unread."""

    SHORT = "short"
    MEDIUM = "medium"
    LONG = "long"


BUCKET_BOUNDS = {Bucket.SHORT: 512, Bucket.MEDIUM: 4096}
"""Most prompt tokens of a bucket; `LONG` has no bound. 512 is a quarter and 4,096 twice the step budget of 2,048
tokens that an H200 runs a 7B at: a short prompt shares a step, a long one takes several."""


def bucket_of(prompt_tokens: int) -> Bucket:
    """The bucket of a prompt of `prompt_tokens` tokens."""
    for bucket, most in BUCKET_BOUNDS.items():
        if prompt_tokens <= most:
            return bucket
    return Bucket.LONG


class Prompt(Struct, frozen=True, kw_only=True, tag="prompt"):
    """Plain text to continue."""

    text: str


class TokenIds(Struct, frozen=True, kw_only=True, tag="prompt_token_ids"):
    """A prompt that the application has tokenised itself."""

    ids: tuple[int, ...]


class ChatMessage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One turn of a conversation, as OpenAI writes it. Content is text or a list of `{"type": "text"}` parts."""

    role: str
    content: str | tuple[dict[str, Any], ...] | None = None
    name: str | None = None
    tool_calls: tuple[dict[str, Any], ...] | None = None
    tool_call_id: str | None = None


class Chat(Struct, frozen=True, kw_only=True, tag="messages", omit_defaults=True):
    """A conversation, rendered by the model's own chat template on the worker."""

    messages: tuple[ChatMessage, ...]
    tools: tuple[dict[str, Any], ...] | None = None
    template_kwargs: dict[str, Any] | None = None
    """Extra variables for the chat template, such as `enable_thinking`."""


Payload = Prompt | TokenIds | Chat


class AttemptPolicy(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How often an attempt that failed through no fault of the job is repeated."""

    max_attempts: int = 3
    """Attempts in all. Hand-backs (drain, preemption) do not count."""
    backoff_ms: int = 1000
    """Wait before the second attempt; doubles with each further one."""


class Job(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One unit of work, as it travels. Made by `laneway.schemas.build.build_job`, which checks it whole."""

    id: JobId
    model: str
    payload: Payload
    sampling: Sampling = field(default_factory=Sampling)
    slo: SloClass = SloClass.LATENCY
    bucket: Bucket = Bucket.SHORT
    """The producer's estimate; the worker knows better once it has tokenised the prompt."""
    prompt_tokens: int = 0
    """Tokens of the prompt: counted where `prompt_counted`, else estimated from its bytes."""
    prompt_counted: bool = False
    lora: AdapterId | None = None
    tenant: str = "default"
    stream: bool = False
    """Whether token events are published to the producer's output stream. The end of a job always is."""
    deadline_ms: int | None = None
    """Milliseconds after acceptance by which the job must have ended. Redis' clock decides, not the producer's."""
    ttft_ms: int | None = None
    """Target for the time to first token, in milliseconds from acceptance."""
    tpot_ms: int | None = None
    """Target for the time per output token after the first, in milliseconds."""
    idempotency_key: str | None = None
    reply_to: str | None = None
    """The output stream of the producer that waits, as a Redis key."""
    attempts: AttemptPolicy = field(default_factory=AttemptPolicy)
    metadata: dict[str, str] = field(default_factory=dict)
    """Returned with the result untouched; `custom_id` lives here."""
    traceparent: str | None = None
    """W3C trace context."""

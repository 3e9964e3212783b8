"""What an application may say about a job, as types. `laneway.schemas.build.build_job` checks it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Required, TypedDict

from laneway.schemas.job import AttemptPolicy, Bucket, ChatMessage, SloClass
from laneway.schemas.sampling import Sampling


class JobFields(TypedDict, total=False):
    """The fields of a job. Exactly one of `prompt`, `prompt_token_ids` and `messages` is given, and `model` always."""

    model: Required[str]
    prompt: str | None
    prompt_token_ids: Sequence[int] | None
    messages: Sequence[Mapping[str, Any] | ChatMessage] | None
    tools: Sequence[Mapping[str, Any]] | None
    template_kwargs: Mapping[str, Any] | None
    sampling: Sampling | Mapping[str, Any] | None
    slo: SloClass | Literal["latency", "throughput"]
    bucket: Bucket | Literal["short", "medium", "long"] | None
    lora: str | None
    tenant: str | None
    stream: bool | None
    deadline_ms: int | None
    ttft_ms: int | None
    tpot_ms: int | None
    idempotency_key: str | None
    reply_to: str | None
    metadata: Mapping[str, str] | None
    traceparent: str | None
    attempts: AttemptPolicy | Mapping[str, int] | None
    prompt_tokens: int | None

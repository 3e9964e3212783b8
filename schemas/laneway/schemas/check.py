"""What a job may be: the checks at submit, repeated by the worker, which must not trust what stands in a stream."""

from __future__ import annotations

import re
from typing import Any

from laneway.schemas.errors import InvalidJob, Words
from laneway.schemas.ids import AdapterId, parse_job_id, queue_tag
from laneway.schemas.job import Chat, ChatMessage, Job, Payload, Prompt, TokenIds
from laneway.schemas.plain import plain
from laneway.schemas.sampling import MAX_TOKEN_ID, check_sampling
from laneway.schemas.text import check_text

MAX_PROMPT_BYTES = 4 * 1024 * 1024
"""Bytes of all text in a payload. About a million tokens: above the context of nearly every model."""
MAX_PROMPT_TOKENS = 1 << 20
MAX_MESSAGES = 4096
MAX_PARTS = 1024  # text parts of one message
MAX_TOOLS = 256
MAX_METADATA = 16  # pairs; OpenAI's bounds, as are the two below
MAX_METADATA_KEY = 64
MAX_METADATA_VALUE = 512
MAX_DEADLINE_MS = 30 * 24 * 3600 * 1000

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]*(/[A-Za-z0-9][A-Za-z0-9._@-]*)*")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def check_job(job: Job) -> None:
    """Check a job whole.

    Raises:
        InvalidJob: the first thing found wrong.
    """
    check_model(job.model)
    if parse_job_id(job.id)[0] != queue_tag(job.model):
        raise InvalidJob("id", f"the id of a job for {job.model}", job.id)
    if job.lora is not None:
        check_adapter(job.lora)
    _check_payload(job.payload)
    check_sampling(job.sampling)
    _check_promises(job)
    _check_labels(job)


def check_model(name: object) -> str:
    """`name`, if it can name a model. Raises `InvalidJob`."""
    return _name("model", name)


def check_adapter(name: object) -> AdapterId:
    """`name`, if it can name an adapter: never a path, so that no id reaches outside the adapter folder."""
    return AdapterId(_name("lora", name))


def payload_bytes(payload: Payload) -> int:
    """Bytes of all text in a payload; four for a token id.

    Raises:
        InvalidJob: text that cannot travel, or more than `MAX_PROMPT_BYTES` of it.
    """
    match payload:
        case Prompt(text=text):
            return check_text("prompt", text, most_bytes=MAX_PROMPT_BYTES)
        case TokenIds(ids=ids):
            return 4 * len(ids)
        case Chat():
            return _chat_bytes(payload)


def integer(field: str, value: object, low: int, high: int) -> int:
    """`value`, if it is an integer in [`low`, `high`]. Raises `InvalidJob`."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidJob(field, f"an integer in [{low}, {high}]", value)
    return value


def _name(field: str, name: object) -> str:
    if not isinstance(name, str) or len(name) > 200 or not _NAME.fullmatch(name):
        raise InvalidJob(field, "a name of letters, digits and . _ @ - / (at most 200, no path)", name)
    return name


def _check_payload(payload: Payload) -> None:
    match payload:
        case Prompt(text=text):
            if not text:
                raise InvalidJob("prompt", "text that is not empty", text)
            payload_bytes(payload)
        case TokenIds(ids=ids):
            if not 1 <= len(ids) <= MAX_PROMPT_TOKENS:
                raise InvalidJob("prompt_token_ids", f"1 to {MAX_PROMPT_TOKENS} token ids", ids)
            if (worst := min(ids)) < 0 or (worst := max(ids)) > MAX_TOKEN_ID:
                raise InvalidJob("prompt_token_ids", f"token ids in [0, {MAX_TOKEN_ID}]", worst)
        case Chat(messages=messages):
            if not 1 <= len(messages) <= MAX_MESSAGES:
                raise InvalidJob("messages", f"1 to {MAX_MESSAGES} messages", messages)
            if payload_bytes(payload) > MAX_PROMPT_BYTES:
                raise InvalidJob("messages", f"at most {MAX_PROMPT_BYTES} bytes of text", messages)
            if not any(message.content or message.tool_calls for message in messages):
                raise InvalidJob("messages", "at least one message with content", messages)


def _chat_bytes(chat: Chat) -> int:
    if len(chat.tools or ()) > MAX_TOOLS:
        raise InvalidJob("tools", f"at most {MAX_TOOLS} tools", chat.tools)
    size = _data_bytes("tools", chat.tools) + _data_bytes("template_kwargs", chat.template_kwargs)
    for index, message in enumerate(chat.messages):
        size += _message_bytes(f"messages[{index}]", message)
        if size > MAX_PROMPT_BYTES:
            raise InvalidJob("messages", f"at most {MAX_PROMPT_BYTES} bytes of text", Words("more"))
    return size


def _message_bytes(field: str, message: ChatMessage) -> int:
    if not message.role:
        raise InvalidJob(f"{field}.role", "text that is not empty", message.role)
    size = 0
    for name in ("role", "name", "tool_call_id"):
        if (text := getattr(message, name)) is not None:
            size += check_text(f"{field}.{name}", text, most_bytes=1024)
    if isinstance(message.content, str):
        size += check_text(f"{field}.content", message.content, most_bytes=MAX_PROMPT_BYTES)
    else:
        if len(message.content or ()) > MAX_PARTS:
            raise InvalidJob(f"{field}.content", f"at most {MAX_PARTS} parts", message.content)
        for index, part in enumerate(message.content or ()):
            size += _part_bytes(f"{field}.content[{index}]", part)
    return size + _data_bytes(f"{field}.tool_calls", message.tool_calls)


def _part_bytes(field: str, part: dict[str, Any]) -> int:
    if part.get("type") != "text" or set(part) != {"type", "text"} or not isinstance(part["text"], str):
        raise InvalidJob(field, "a part {type: text, text: ...}: models here read text only", part)
    return check_text(f"{field}.text", part["text"], most_bytes=MAX_PROMPT_BYTES)


def _data_bytes(field: str, data: object) -> int:
    return 0 if data is None else plain(field, data, most_bytes=MAX_PROMPT_BYTES)[1]


def _check_promises(job: Job) -> None:
    for field in ("deadline_ms", "ttft_ms", "tpot_ms"):
        if (value := getattr(job, field)) is not None:
            integer(field, value, 1, MAX_DEADLINE_MS)
    integer("prompt_tokens", job.prompt_tokens, 0, MAX_PROMPT_BYTES)
    integer("attempts.max_attempts", job.attempts.max_attempts, 1, 100)
    integer("attempts.backoff_ms", job.attempts.backoff_ms, 0, 3_600_000)


def _check_labels(job: Job) -> None:
    for field, most in (("tenant", 128), ("idempotency_key", 256), ("reply_to", 256)):
        value = getattr(job, field)
        if value is None:
            continue
        if not isinstance(value, str) or not value:
            raise InvalidJob(field, "text that is not empty", value)
        check_text(field, value, most_bytes=most)
        if not value.isprintable() or (field == "reply_to" and (" " in value or not value.isascii())):
            blanks = " in ASCII, without blanks" if field == "reply_to" else ""
            raise InvalidJob(field, f"printable text{blanks}", value)
    if not isinstance(job.stream, bool):
        raise InvalidJob("stream", "true or false", job.stream)
    trace = job.traceparent
    if trace is not None and not (isinstance(trace, str) and _TRACEPARENT.fullmatch(trace)):
        raise InvalidJob("traceparent", "a W3C traceparent", trace)
    if not isinstance(job.metadata, dict) or len(job.metadata) > MAX_METADATA:
        raise InvalidJob("metadata", f"at most {MAX_METADATA} pairs of text", job.metadata)
    for key, value in job.metadata.items():
        if not (isinstance(key, str) and isinstance(value, str)):
            raise InvalidJob("metadata", "text keys and text values", {key: value})
        check_text("metadata", key, most_bytes=MAX_METADATA_KEY)
        check_text("metadata", value, most_bytes=MAX_METADATA_VALUE)

"""From what an application writes to a checked `Job`. Every refusal names the field, the expected and the given."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from laneway.schemas.errors import InvalidJob, nearest
from laneway.schemas.ids import AdapterId, JobId
from laneway.schemas.job import (
    AttemptPolicy,
    Bucket,
    Chat,
    Job,
    Payload,
    Prompt,
    SloClass,
    TokenIds,
    bucket_of,
)
from laneway.schemas.sampling import MAX_TOKEN_ID, Sampling, check_sampling
from laneway.schemas.text import check_text

MAX_PROMPT_BYTES = 4 * 1024 * 1024
"""Bytes of all text in a payload. About a million tokens: above the context of nearly every model."""
MAX_PROMPT_TOKENS = 1 << 20
MAX_MESSAGES = 4096
MAX_METADATA = 16  # pairs; OpenAI's bounds, as are the two below
MAX_METADATA_KEY = 64
MAX_METADATA_VALUE = 512
MAX_DEADLINE_MS = 30 * 24 * 3600 * 1000
BYTES_PER_TOKEN = 3.0
"""Estimate for prompts nobody has tokenised. English needs 4 to 4.5 bytes a token, code and other languages 2 to 3."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]*(/[A-Za-z0-9][A-Za-z0-9._@-]*)*")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_PAYLOADS = ("prompt", "prompt_token_ids", "messages")
_CHAT_ONLY = ("tools", "template_kwargs")
_OPTIONS = (
    "bucket", "lora", "tenant", "stream", "deadline_ms", "ttft_ms", "tpot_ms", "idempotency_key", "reply_to",
    "metadata", "traceparent",
)  # fmt: skip
FIELDS = (*_PAYLOADS, *_CHAT_ONLY, *_OPTIONS, "model", "slo", "sampling", "attempts", "prompt_tokens")


def build_job(*, id: JobId, model: str, **fields: Any) -> Job:  # noqa: A002 - the field is called id on the wire too
    """A checked job from the fields that an application gives.

    Exactly one of `prompt` (text), `prompt_token_ids` (list of ints) and `messages` (OpenAI-style chat) is the
    payload. `sampling` is a `Sampling` or a mapping of its fields. `prompt_tokens` may give a count made elsewhere.

    Raises:
        InvalidJob: an unknown field (with the nearest known one), a wrong type or a value out of bounds.
    """
    for name in fields:
        if name not in FIELDS:
            raise InvalidJob(name, f"a known field{nearest(name, FIELDS)}", fields[name])
    payload = _payload(fields)
    counted, tokens = _count(payload, fields.get("prompt_tokens"))
    options: dict[str, Any] = {name: fields[name] for name in _OPTIONS if fields.get(name) is not None}
    options["slo"] = _word("slo", fields.get("slo", SloClass.LATENCY), SloClass)
    options["bucket"] = _word("bucket", options.get("bucket", bucket_of(tokens)), Bucket)
    if (attempts := fields.get("attempts")) is not None:
        options["attempts"] = _struct("attempts", attempts, AttemptPolicy)
    job = Job(
        id=id,
        model=model,
        payload=payload,
        sampling=_struct("sampling", fields.get("sampling") or {}, Sampling),
        prompt_tokens=tokens,
        prompt_counted=counted,
        **options,
    )
    check_job(job)
    return job


def check_job(job: Job) -> None:
    """Check a job whole: at submit, and again by the worker, which must not trust a stream's content.

    Raises:
        InvalidJob: the first thing found wrong.
    """
    check_model(job.model)
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


def _name(field: str, name: object) -> str:
    if not isinstance(name, str) or len(name) > 200 or not _NAME.fullmatch(name):
        raise InvalidJob(field, "a name of letters, digits and . _ @ - / (at most 200, no path)", name)
    return name


def _payload(fields: Mapping[str, Any]) -> Payload:
    given = [name for name in _PAYLOADS if fields.get(name) is not None]
    if len(given) != 1:
        raise InvalidJob("payload", "exactly one of prompt, prompt_token_ids and messages", given)
    chat_only = {name: fields[name] for name in _CHAT_ONLY if fields.get(name) is not None}
    if given[0] != "messages" and chat_only:
        raise InvalidJob(next(iter(chat_only)), "nothing unless messages is given", given[0])
    value = fields[given[0]]
    if given[0] == "prompt":
        if not isinstance(value, str):
            raise InvalidJob("prompt", "text", value)
        return Prompt(text=value)
    if given[0] == "prompt_token_ids":
        return TokenIds(ids=_convert("prompt_token_ids", value, tuple[int, ...]))
    if not isinstance(value, list | tuple):
        raise InvalidJob("messages", "a list of messages", value)
    chat: Chat = _struct("messages", {"type": "messages", "messages": value, **chat_only}, Chat)
    return chat


def _count(payload: Payload, given: object) -> tuple[bool, int]:
    if isinstance(payload, TokenIds):
        return True, len(payload.ids)
    if given is not None:
        return True, _integer("prompt_tokens", given, 1, MAX_PROMPT_TOKENS)
    return False, max(1, round(_text_bytes(payload) / BYTES_PER_TOKEN))


def _text_bytes(payload: Payload) -> int:
    match payload:
        case Prompt(text=text):
            return check_text("prompt", text, most_bytes=MAX_PROMPT_BYTES)
        case TokenIds(ids=ids):
            return 4 * len(ids)
        case Chat(messages=messages):
            return sum(
                check_text("messages", text, most_bytes=MAX_PROMPT_BYTES) for text in _chat_text(messages)
            )


def _chat_text(messages: tuple[Any, ...]) -> list[str]:
    texts: list[str] = []
    for message in messages:
        texts += [text for text in (message.role, message.name, message.tool_call_id) if text is not None]
        if isinstance(message.content, str):
            texts.append(message.content)
        else:
            texts += [part["text"] for part in message.content or () if isinstance(part.get("text"), str)]
    return texts


def _check_payload(payload: Payload) -> None:
    match payload:
        case Prompt(text=text):
            check_text("prompt", text, most_bytes=MAX_PROMPT_BYTES)
            if not text:
                raise InvalidJob("prompt", "text that is not empty", text)
        case TokenIds(ids=ids):
            if not 1 <= len(ids) <= MAX_PROMPT_TOKENS:
                raise InvalidJob("prompt_token_ids", f"1 to {MAX_PROMPT_TOKENS} token ids", ids)
            for token in ids:
                if not 0 <= token <= MAX_TOKEN_ID:
                    raise InvalidJob("prompt_token_ids", f"token ids in [0, {MAX_TOKEN_ID}]", token)
        case Chat(messages=messages):
            if not 1 <= len(messages) <= MAX_MESSAGES:
                raise InvalidJob("messages", f"1 to {MAX_MESSAGES} messages", messages)
            if _text_bytes(payload) > MAX_PROMPT_BYTES:
                raise InvalidJob("messages", f"at most {MAX_PROMPT_BYTES} bytes of text", messages)
            if not any(message.content or message.tool_calls for message in messages):
                raise InvalidJob("messages", "at least one message with content", messages)


def _check_promises(job: Job) -> None:
    for field in ("deadline_ms", "ttft_ms", "tpot_ms"):
        if (value := getattr(job, field)) is not None:
            _integer(field, value, 1, MAX_DEADLINE_MS)
    _integer("attempts.max_attempts", job.attempts.max_attempts, 1, 100)
    _integer("attempts.backoff_ms", job.attempts.backoff_ms, 0, 3_600_000)


def _check_labels(job: Job) -> None:
    for field, most in (("tenant", 128), ("idempotency_key", 256), ("reply_to", 256)):
        value = getattr(job, field)
        if value is None:
            continue
        if not isinstance(value, str) or not value:
            raise InvalidJob(field, "text that is not empty", value)
        check_text(field, value, most_bytes=most)
    if not isinstance(job.stream, bool):
        raise InvalidJob("stream", "true or false", job.stream)
    if job.traceparent is not None and not (
        isinstance(job.traceparent, str) and _TRACEPARENT.fullmatch(job.traceparent)
    ):
        raise InvalidJob("traceparent", "a W3C traceparent", job.traceparent)
    if not isinstance(job.metadata, dict) or len(job.metadata) > MAX_METADATA:
        raise InvalidJob("metadata", f"at most {MAX_METADATA} pairs of text", job.metadata)
    for key, value in job.metadata.items():
        if not (isinstance(key, str) and isinstance(value, str)):
            raise InvalidJob("metadata", "text keys and text values", {key: value})
        check_text("metadata", key, most_bytes=MAX_METADATA_KEY)
        check_text("metadata", value, most_bytes=MAX_METADATA_VALUE)


def _integer(field: str, value: object, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidJob(field, f"an integer in [{low}, {high}]", value)
    return value


def _word(field: str, value: object, words: type[Any]) -> Any:
    if isinstance(value, words):
        return value
    known = [word.value for word in words]
    if value not in known:
        hint = nearest(value, known) if isinstance(value, str) else ""
        raise InvalidJob(field, f"one of {', '.join(known)}{hint}", value)
    return words(value)


def _struct(field: str, value: object, kind: type[Any]) -> Any:
    if isinstance(value, kind):
        return value
    if not isinstance(value, Mapping):
        raise InvalidJob(field, "a mapping of fields", value)
    for name in value:
        if name not in kind.__struct_fields__ and name != "type":
            raise InvalidJob(
                f"{field}.{name}", f"a known field{nearest(str(name), kind.__struct_fields__)}", value[name]
            )
    if kind is Sampling and isinstance(value.get("stop"), str):
        value = {**value, "stop": [value["stop"]]}
    return _convert(field, {name: item for name, item in value.items() if item is not None}, kind)


def _convert(field: str, value: object, kind: Any) -> Any:
    try:
        return msgspec.convert(value, kind, str_keys=True)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at ")
        where = path.strip("`").removeprefix("$")
        raise InvalidJob(field + where, reason.removeprefix("Expected ").split(", got ")[0], value) from None
    except (RecursionError, OverflowError, UnicodeError):
        raise InvalidJob(field, "plain data of ordinary depth and size", type(value).__name__) from None

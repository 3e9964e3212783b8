"""From what an application writes to a checked `Job`. Every refusal names the field, the expected and the given."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

import msgspec

from laneway.schemas.check import (
    MAX_DEADLINE_MS,
    MAX_MESSAGES,
    MAX_METADATA,
    MAX_METADATA_KEY,
    MAX_METADATA_VALUE,
    MAX_PARTS,
    MAX_PROMPT_BYTES,
    MAX_PROMPT_TOKENS,
    MAX_TOOLS,
    check_adapter,
    check_job,
    check_model,
    integer,
    payload_bytes,
)
from laneway.schemas.errors import InvalidJob, Words, nearest
from laneway.schemas.ids import JobId
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
    bucket_of,
)
from laneway.schemas.plain import fields_of, items_of, number, plain
from laneway.schemas.sampling import (
    MAX_ALLOWED_TOKEN_IDS,
    MAX_BAD_WORDS,
    MAX_GRAMMAR_BYTES,
    MAX_LOGIT_BIAS,
    MAX_STOP,
    MAX_STOP_TOKEN_IDS,
    Sampling,
    StructuredOutput,
)

__all__ = [
    "BYTES_PER_TOKEN", "FIELDS", "MAX_DEADLINE_MS", "MAX_MESSAGES", "MAX_METADATA", "MAX_METADATA_KEY",
    "MAX_METADATA_VALUE", "MAX_PROMPT_BYTES", "MAX_PROMPT_TOKENS", "build_job", "check_adapter", "check_job", "check_model",
]  # fmt: skip

BYTES_PER_TOKEN = 3.0
"""Estimate for prompts nobody has tokenised. English needs 4 to 4.5 bytes a token, code and other languages 2 to 3."""

_PAYLOADS = ("prompt", "prompt_token_ids", "messages")
_CHAT_ONLY = ("tools", "template_kwargs")
_OPTIONS = (
    "bucket", "lora", "tenant", "stream", "deadline_ms", "ttft_ms", "tpot_ms", "idempotency_key", "reply_to",
    "metadata", "traceparent",
)  # fmt: skip
FIELDS = (*_PAYLOADS, *_CHAT_ONLY, *_OPTIONS, "model", "slo", "sampling", "attempts", "prompt_tokens")


def build_job(*, id: JobId, model: str, **fields: Any) -> Job:  # noqa: A002 - the field is called id on the wire too
    """A checked job from the fields that an application gives. A field that is None counts as not given.

    Exactly one of `prompt` (text), `prompt_token_ids` (ints, from any iterable) and `messages` (OpenAI-style chat) is
    the payload. `sampling` is a `Sampling` or a mapping of its fields. `prompt_tokens` may give a count made elsewhere.

    Raises:
        InvalidJob: an unknown field (with the nearest known one), a wrong type or a value out of bounds.
    """
    _refuse_unknown("", fields, FIELDS)
    fields = fields_of("job", fields)
    payload = _payload(fields)
    counted, tokens = _count(payload, fields.get("prompt_tokens"))
    options: dict[str, Any] = {name: fields[name] for name in _OPTIONS if name in fields}
    options["slo"] = _word("slo", fields.get("slo", SloClass.LATENCY), SloClass)
    options["bucket"] = _word("bucket", options.get("bucket", bucket_of(tokens)), Bucket)
    if "metadata" in options:
        if not isinstance(options["metadata"], Mapping):
            raise InvalidJob("metadata", "a mapping of text to text", options["metadata"])
        options["metadata"] = dict(options["metadata"])
    if "attempts" in fields:
        options["attempts"] = _struct("attempts", fields["attempts"], AttemptPolicy)
    job = Job(
        id=id,
        model=model,
        payload=payload,
        sampling=_sampling(fields.get("sampling", {})),
        prompt_tokens=tokens,
        prompt_counted=counted,
        **options,
    )
    check_job(job)
    return job


# --- the payload -------------------------------------------------------------
def _payload(fields: Mapping[str, Any]) -> Payload:
    given = [name for name in _PAYLOADS if name in fields]
    if len(given) != 1:
        raise InvalidJob("payload", "exactly one of prompt, prompt_token_ids and messages", given)
    kind = given[0]
    for name in _CHAT_ONLY:
        if name in fields and kind != "messages":
            raise InvalidJob(name, "nothing unless messages is given", kind)
    if kind == "prompt":
        return Prompt(text=_convert("prompt", fields["prompt"], str))
    if kind == "prompt_token_ids":
        items = items_of(kind, fields[kind], MAX_PROMPT_TOKENS)
        return TokenIds(ids=_convert(kind, items, tuple[int, ...]))
    return _chat(fields)


def _chat(fields: Mapping[str, Any]) -> Chat:
    messages = items_of("messages", fields["messages"], MAX_MESSAGES)
    chat: dict[str, Any] = {
        "type": "messages",
        "messages": [_message(f"messages[{index}]", message) for index, message in enumerate(messages)],
    }
    if "tools" in fields:
        chat["tools"] = _data("tools", items_of("tools", fields["tools"], MAX_TOOLS))
    if "template_kwargs" in fields:
        chat["template_kwargs"] = _data("template_kwargs", fields["template_kwargs"])
    made: Chat = _convert("", chat, Chat)
    return made


def _message(field: str, given: object) -> ChatMessage:
    values = fields_of(field, given)
    content = values.get("content")
    if content is not None and not isinstance(content, str):
        values["content"] = _data(f"{field}.content", items_of(f"{field}.content", content, MAX_PARTS))
    if "tool_calls" in values:
        values["tool_calls"] = _data(f"{field}.tool_calls", values["tool_calls"])
    message: ChatMessage = _struct(field, values, ChatMessage)
    return message


def _data(field: str, value: object) -> Any:
    return plain(field, value, most_bytes=MAX_PROMPT_BYTES)[0]


def _count(payload: Payload, given: object) -> tuple[bool, int]:
    if isinstance(payload, TokenIds):
        return True, len(payload.ids)
    if given is not None:
        return True, integer("prompt_tokens", given, 1, MAX_PROMPT_TOKENS)
    return False, max(1, round(payload_bytes(payload) / BYTES_PER_TOKEN))


# --- sampling ----------------------------------------------------------------
_LISTS = {
    "stop": MAX_STOP,
    "bad_words": MAX_BAD_WORDS,
    "stop_token_ids": MAX_STOP_TOKEN_IDS,
    "allowed_token_ids": MAX_ALLOWED_TOKEN_IDS,
}


def _sampling(given: object) -> Sampling:
    values = fields_of("sampling", given)
    if isinstance(values.get("stop"), str):
        values["stop"] = [values["stop"]]
    for name, most in _LISTS.items():
        if name in values:
            values[name] = items_of(f"sampling.{name}", values[name], most)
    if "logit_bias" in values:
        values["logit_bias"] = _logit_bias(values["logit_bias"])
    if "structured_outputs" in values:
        values["structured_outputs"] = _structured(values["structured_outputs"])
    sampling: Sampling = _struct("sampling", values, Sampling)
    return sampling


def _logit_bias(given: object) -> dict[Any, Any]:
    if not isinstance(given, Mapping):
        raise InvalidJob("sampling.logit_bias", "a mapping of token id to number", given, private=True)
    if len(given) > MAX_LOGIT_BIAS:
        raise InvalidJob("sampling.logit_bias", f"at most {MAX_LOGIT_BIAS} token ids", given, private=True)
    return {number(token): number(bias) for token, bias in given.items()}


def _structured(given: object) -> StructuredOutput:
    field = "sampling.structured_outputs"
    values = fields_of(field, given)
    if not isinstance(values.get("json", ""), str):
        values["json"] = plain(f"{field}.json", values["json"], most_bytes=MAX_GRAMMAR_BYTES)[0]
    if "choice" in values:
        values["choice"] = items_of(f"{field}.choice", values["choice"], 256)
    constraint: StructuredOutput = _struct(field, values, StructuredOutput)
    return constraint


# --- pieces ------------------------------------------------------------------
def _refuse_unknown(field: str, given: Mapping[Any, Any], known: tuple[str, ...]) -> None:
    for name in given:
        if name not in known:
            path = f"{field}.{name}" if field else str(name)
            hint = nearest(str(name), known)
            if not field and name in Sampling.__struct_fields__:
                hint = f" (did you mean sampling={{{name!r}: ...}}?)"
            raise InvalidJob(path, f"a known field{hint}", given[name], private=True)


def _struct(field: str, value: object, kind: type[msgspec.Struct]) -> Any:
    values = fields_of(field, value)
    _refuse_unknown(field, values, kind.__struct_fields__)
    return _convert(field, values, kind)


def _word(field: str, value: object, words: type[Enum]) -> Any:
    if isinstance(value, words):
        return value
    known = [str(word.value) for word in words]
    if not isinstance(value, str) or value not in known:
        hint = nearest(value, known) if isinstance(value, str) else ""
        raise InvalidJob(field, f"one of {', '.join(known)}{hint}", value)
    return words(value)


def _convert(field: str, value: object, kind: Any) -> Any:
    try:
        return msgspec.convert(value, kind, str_keys=True)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at ")
        path = path.rpartition(" in ")[2].strip("`").removeprefix("$")
        expected, _, got = reason.replace("`", "").removeprefix("Expected ").partition(", got ")
        if not reason.startswith("Expected "):
            expected = "a value in range"  # the other reasons may quote the value
        where = f"{field}{path}".removeprefix(".")
        raise InvalidJob(where, expected, Words(got or "one beyond it")) from None
    except (RecursionError, OverflowError, UnicodeError):
        raise InvalidJob(field, "plain data of ordinary depth and size", value, private=True) from None

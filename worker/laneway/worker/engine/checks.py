"""What every engine refuses before a job touches it: numbers that only the loaded model knows the bounds of."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from laneway.schemas.errors import InvalidJob
from laneway.schemas.job import ChatMessage, Job, TokenIds
from laneway.schemas.sampling import check_sampling
from laneway.schemas.text import check_text
from laneway.worker.errors import JobRefused
from laneway.worker.policy.resume import remaining
from laneway.worker.ports import EngineInfo, Prepared


def check_again(job: Job) -> None:
    """The job's sampling is within the bounds of its schema. An engine in this process has no other guard.

    Raises:
        JobRefused: `invalid_job`, naming the field.
    """
    try:
        check_sampling(job.sampling)
    except InvalidJob as error:
        raise JobRefused("invalid_job", str(error), error.field) from None


def check_prompt(text: str) -> str:
    """`text`, if a tokenizer can take it.

    Raises:
        JobRefused: `invalid_job`: it has lone surrogates or NUL characters.
    """
    try:
        check_text("prompt", text, most_bytes=sys.maxsize)
    except InvalidJob as error:
        raise JobRefused("invalid_job", f"prompt: expected {error.expected}", "prompt") from None
    return text


def check_token_ids(job: Job, prompt: Iterable[int], vocabulary: int) -> None:
    """Every token id of the prompt and of the job's lists is below `vocabulary`, the rows of the model's embedding.

    One that is not ends the engine, or spoils the answers of other jobs.

    Raises:
        JobRefused: `token_out_of_range`, naming the field.
    """
    sampling = job.sampling
    _check("prompt_token_ids" if isinstance(job.payload, TokenIds) else "prompt", prompt, vocabulary)
    _check("sampling.stop_token_ids", sampling.stop_token_ids, vocabulary)
    _check("sampling.logit_bias", sampling.logit_bias or (), vocabulary)
    _check("sampling.allowed_token_ids", sampling.allowed_token_ids or (), vocabulary)


def _check(field: str, ids: Iterable[int], vocabulary: int) -> None:
    for token in ids:
        if not 0 <= token < vocabulary:
            raise JobRefused(
                "token_out_of_range",
                f"{field}: expected token ids in [0, {vocabulary - 1}], got {token}",
                field,
            )


def fit_tokens(prompt: int, wanted: int | None, info: EngineInfo) -> int:
    """Output tokens that a prompt of `prompt` tokens leaves room for, at most `wanted`.

    Raises:
        JobRefused: `empty_prompt`, or `prompt_too_long` for the context or the whole KV cache.
    """
    if prompt < 1:
        raise JobRefused("empty_prompt", "prompt: expected at least one token, got none", "prompt")
    most = min(info.context_tokens, info.kv_tokens)
    if prompt >= most:
        what = "context" if info.context_tokens <= info.kv_tokens else "KV cache"
        raise JobRefused(
            "prompt_too_long",
            f"prompt: expected at most {most - 1} tokens (the model's {what} holds {most}), got {prompt}",
            "prompt",
        )
    return most - prompt if wanted is None else min(wanted, most - prompt)


def extended(prepared: Prepared, generated: Sequence[int]) -> Prepared:
    """`Engine.extend`, as far as it is the same for every engine: all but `native`."""
    job, count = prepared.job, len(generated)
    return replace(
        prepared,
        job=replace(job, sampling=remaining(job.sampling, count)),
        prompt_token_ids=(*prepared.prompt_token_ids, *generated),
        max_tokens=prepared.max_tokens - count,
        generated=count,
    )


def text_of(message: ChatMessage) -> str:
    """A message's content as text. Raises `JobRefused` for parts that are not text."""
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    parts = []
    for part in message.content:
        if part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise JobRefused("unsupported", "messages: expected parts of type text only", "messages")
        parts.append(part["text"])
    return "\n".join(parts)

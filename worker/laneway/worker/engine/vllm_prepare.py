"""A job made ready for vLLM: rendered, tokenised and checked. Blocking; it runs in a thread of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from laneway.schemas.job import Chat, ChatMessage, Job, Prompt, TokenIds
from laneway.worker.engine.checks import (
    check_again,
    check_prompt,
    check_token_ids,
    extended,
    fit_tokens,
    text_of,
)
from laneway.worker.errors import JobRefused
from laneway.worker.ports import EngineInfo, Prepared

MOST_REASON = 200
"""Characters of a template's or vLLM's own words that an error repeats."""

_RESERVED = {
    "conversation", "messages", "tools", "chat_template", "add_generation_prompt", "continue_final_message",
    "tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict",
    "return_assistant_tokens_mask", "tokenizer_kwargs",
}  # fmt: skip
"""Arguments of `apply_chat_template` that are not variables of a template. A template of the job's own is a program."""


class Preparer:
    """Prepares jobs with the model's own tokenizer and chat template."""

    def __init__(self, tokenizer: Any, info: EngineInfo, sampling: Callable[[Job, int], Any]) -> None:
        """`sampling` makes the engine's own parameters from a job and its number of output tokens.

        Without a `tokenizer` (None) only prompts of token ids are taken.
        """
        self._tokenizer = tokenizer
        self._info = info
        self._sampling = sampling
        self._longest = max(map(len, tokenizer.get_vocab() if tokenizer else ()), default=1)

    def prepare(self, job: Job) -> Prepared:
        """Check and tokenise. Raises `JobRefused`."""
        if job.lora is not None and not self._info.max_loras:
            raise JobRefused("adapters_off", "lora: this engine runs without adapters", "lora")
        if job.sampling.prompt_logprobs is not None:
            raise JobRefused(
                "unsupported",
                "sampling.prompt_logprobs: expected nothing, since results have no room for them",
                "sampling.prompt_logprobs",
            )
        check_again(job)
        ids = self._token_ids(job)
        check_token_ids(job, ids, self._info.vocabulary)
        room = fit_tokens(len(ids), job.sampling.max_tokens, self._info)
        return Prepared(job=job, prompt_token_ids=ids, max_tokens=room, native=self._sampling(job, room))

    def extend(self, prepared: Prepared, generated: Sequence[int]) -> Prepared:
        """The job, to go on from tokens that its answer has already."""
        made = extended(prepared, generated)
        return replace(made, native=self._sampling(made.job, made.max_tokens))

    def _token_ids(self, job: Job) -> tuple[int, ...]:
        payload = job.payload
        if isinstance(payload, TokenIds):
            return payload.ids
        if self._tokenizer is None:
            field = "prompt" if isinstance(payload, Prompt) else "messages"
            reason = f"{field}: this engine runs without a tokenizer and takes prompt_token_ids only"
            raise JobRefused("no_tokenizer", reason, field)
        if isinstance(payload, Prompt):
            return self._encode(payload.text, special=True)
        return self._encode(self._render(payload), special=False)

    def _encode(self, text: str, *, special: bool) -> tuple[int, ...]:
        most = min(self._info.context_tokens, self._info.kv_tokens)
        if len(text) > most * self._longest:
            # No tokenizer could make it fit: not worth seconds of work.
            fit_tokens(-(-len(text) // self._longest), None, self._info)
        return tuple(self._tokenizer.encode(check_prompt(text), add_special_tokens=special))

    def _render(self, chat: Chat) -> str:
        extra = chat.template_kwargs or {}
        if taken := _RESERVED & extra.keys():
            name = min(taken)
            raise JobRefused(
                "template_refused", f"template_kwargs: {name} is not for jobs to set", "template_kwargs"
            )
        if getattr(self._tokenizer, "chat_template", None) is None:
            raise JobRefused("no_chat_template", "messages: this model has no chat template", "messages")
        messages = [_message(message) for message in chat.messages]
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    messages,
                    tools=list(chat.tools) if chat.tools else None,
                    tokenize=False,
                    add_generation_prompt=True,
                    **extra,
                )
            )
        except Exception as error:  # a template is a program of the model's author: it may raise anything
            raise JobRefused(
                "template_refused",
                f"messages: the chat template refused them: {first_line(error)}",
                "messages",
            ) from None


def _message(message: ChatMessage) -> dict[str, Any]:
    """A message as templates expect it: content as text, arguments of tool calls as objects."""
    made: dict[str, Any] = {"role": message.role, "content": text_of(message)}
    for field in ("name", "tool_call_id"):
        if (value := getattr(message, field)) is not None:
            made[field] = value
    if message.tool_calls:
        made["tool_calls"] = [_call(call) for call in message.tool_calls]
    return made


def _call(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def first_line(error: BaseException) -> str:
    """An error's own words, on one line and short."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= MOST_REASON else f"{text[: MOST_REASON - 3]}..."

"""How an answer is drawn: every `SamplingParams` field of vLLM that is data, and the bounds the engine needs.

The engine runs inside the worker's process group and has no HTTP guard in front of it: a value it cannot hold
ends every job in it. The bounds below are therefore checked at submit and again before the engine.
"""

from __future__ import annotations

import math
from typing import Any

from msgspec import Struct

from laneway.schemas.errors import InvalidJob
from laneway.schemas.text import check_text

MAX_N = 64  # outputs per job: a 65-byte job with n in the millions took 22 GB in vLLM
MAX_TOKENS = 1 << 20  # output tokens: above any context of today, below any integer overflow
MAX_LOGPROBS = 20  # OpenAI's bound; the engine's own `max_logprobs` default is 20 as well
MAX_STOP = 16  # stop strings
MAX_STOP_LENGTH = 1024  # characters of one stop string or bad word
MAX_STOP_TOKEN_IDS = 128  # vLLM raises inside the worker step above this
MAX_LOGIT_BIAS = 1024  # likewise
MAX_ALLOWED_TOKEN_IDS = 1024  # likewise
MAX_BAD_WORDS = 64
MAX_TOKEN_ID = (1 << 31) - 1  # the true bound is the vocabulary, known to the worker
SEED_RANGE = (-(1 << 63), (1 << 63) - 1)  # the engine keeps seeds in an int64 array
MAX_GRAMMAR_BYTES = 64 * 1024
MAX_GRAMMAR_DEPTH = 16  # nested oneOf grows a grammar exponentially


class StructuredOutput(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A constraint on the text of an answer: exactly one of the fields is set."""

    json: dict[str, Any] | str | None = None
    """A JSON schema."""
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    """A context-free grammar in the engine's EBNF dialect."""
    json_object: bool | None = None
    """True: any JSON object."""


class Sampling(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sampling parameters, named as vLLM names them. A field left at its default is not sent."""

    n: int = 1
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 means all tokens."""
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    max_tokens: int | None = None
    """None: as many as fit the context."""
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    bad_words: tuple[str, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    structured_outputs: StructuredOutput | None = None


NOT_OFFERED = {
    "detokenize": "an answer without text could not be streamed or stored as one",
    "extra_args": "goes to plugins unchecked",
    "flat_logprobs": "a form of output, the worker's to choose",
    "logprob_token_ids": "reads any number of rows of every step's logits",
    "output_kind": "a form of output, the worker's to choose",
    "output_text_buffer_length": "the engine computes it",
    "prompt_logprob_start": "unknown to the oldest engine that is supported",
    "prompt_logprob_token_ids": "unknown to the oldest engine that is supported",
    "repetition_detection": "ends an answer with a reason that is neither a stop nor a length",
    "routed_experts_prompt_start": "a probe for the training of experts",
    "skip_clone": "a promise about the caller's own code",
    "skip_reading_prefix_cache": "the worker's to choose: it changes the cost, not the answer",
    "stream_interval": "a form of output, the worker's to choose",
    "thinking_token_budget": "needs a reasoning parser, which the worker does not configure",
    "trace_decode_token_ids": "replays an answer instead of drawing one",
    "watermarking": "unknown to the oldest engine that is supported",
    "structured_outputs.disable_additional_properties": "write it into the schema",
    "structured_outputs.disable_any_whitespace": "a setting of the engine as a whole",
    "structured_outputs.structural_tag": "its nesting has no bound that can be checked before the engine",
    "structured_outputs.whitespace_pattern": "understood by one grammar back-end only",
}
"""Fields of vLLM's `SamplingParams` that a job cannot set, and why."""


def check_sampling(sampling: Sampling) -> None:
    """Refuse what the engine would die of or silently misread.

    Raises:
        InvalidJob: names the field, the allowed range and the value.
    """
    _check_numbers(sampling)
    _check_lists(sampling)
    if sampling.max_tokens is not None and sampling.min_tokens > sampling.max_tokens:
        raise InvalidJob(
            "sampling.min_tokens", f"at most max_tokens ({sampling.max_tokens})", sampling.min_tokens
        )
    if sampling.n > 1 and sampling.temperature == 0:
        raise InvalidJob(
            "sampling.n", "1 when temperature is 0 (greedy answers are all the same)", sampling.n
        )
    if sampling.structured_outputs is not None:
        _check_structured(sampling.structured_outputs)


# field, lowest, highest, lowest is excluded
_FLOATS: tuple[tuple[str, float, float, bool], ...] = (
    ("temperature", 0.0, 100.0, False),
    ("top_p", 0.0, 1.0, True),
    ("min_p", 0.0, 1.0, False),
    ("presence_penalty", -2.0, 2.0, False),
    ("frequency_penalty", -2.0, 2.0, False),
    ("repetition_penalty", 0.0, 100.0, True),
)
_INTS: tuple[tuple[str, int, int], ...] = (
    ("n", 1, MAX_N),
    ("top_k", -1, MAX_TOKEN_ID),
    ("seed", *SEED_RANGE),
    ("max_tokens", 1, MAX_TOKENS),
    ("min_tokens", 0, MAX_TOKENS),
    ("logprobs", 0, MAX_LOGPROBS),
    ("prompt_logprobs", 0, MAX_LOGPROBS),
)


def _check_numbers(sampling: Sampling) -> None:
    for field, low, high, open_low in _FLOATS:
        value = getattr(sampling, field)
        inside = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not (inside and low <= value <= high and not (open_low and value == low)):
            bracket = "(" if open_low else "["
            raise InvalidJob(f"sampling.{field}", f"a number in {bracket}{low:g}, {high:g}]", value)
    if 0 < sampling.temperature < 1e-5:
        raise InvalidJob("sampling.temperature", "0 (greedy) or at least 1e-05", sampling.temperature)
    for field, lowest, highest in _INTS:
        value = getattr(sampling, field)
        if value is None and field in {"seed", "max_tokens", "logprobs", "prompt_logprobs"}:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
            raise InvalidJob(f"sampling.{field}", f"an integer in [{lowest}, {highest}]", value)


def _check_lists(sampling: Sampling) -> None:
    for field, most in (("stop", MAX_STOP), ("bad_words", MAX_BAD_WORDS)):
        words = getattr(sampling, field)
        if len(words) > most:
            raise InvalidJob(f"sampling.{field}", f"at most {most} strings", words)
        for word in words:
            check_text(f"sampling.{field}", word, most_bytes=4 * MAX_STOP_LENGTH)
            if not word or len(word) > MAX_STOP_LENGTH:
                raise InvalidJob(f"sampling.{field}", f"strings of 1 to {MAX_STOP_LENGTH} characters", word)
    _check_token_ids("stop_token_ids", sampling.stop_token_ids, MAX_STOP_TOKEN_IDS)
    if sampling.allowed_token_ids is not None:
        if not sampling.allowed_token_ids:
            raise InvalidJob("sampling.allowed_token_ids", "at least one token id, or nothing", ())
        _check_token_ids("allowed_token_ids", sampling.allowed_token_ids, MAX_ALLOWED_TOKEN_IDS)
    if sampling.logit_bias is not None:
        _check_token_ids("logit_bias", tuple(sampling.logit_bias), MAX_LOGIT_BIAS)
        for bias in sampling.logit_bias.values():
            if not math.isfinite(bias) or not -100 <= bias <= 100:
                raise InvalidJob("sampling.logit_bias", "numbers in [-100, 100]", bias)


def _check_token_ids(field: str, ids: tuple[int, ...], most: int) -> None:
    if len(ids) > most:
        raise InvalidJob(f"sampling.{field}", f"at most {most} token ids", ids)
    for token in ids:
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token <= MAX_TOKEN_ID:
            raise InvalidJob(f"sampling.{field}", f"token ids in [0, {MAX_TOKEN_ID}]", token)


def _check_structured(constraint: StructuredOutput) -> None:
    given = [name for name in constraint.__struct_fields__ if getattr(constraint, name) is not None]
    if len(given) != 1:
        raise InvalidJob(
            "sampling.structured_outputs", "exactly one of json, regex, choice, grammar, json_object", given
        )
    field = f"sampling.structured_outputs.{given[0]}"
    if constraint.json_object is False:
        raise InvalidJob(field, "true, or nothing", constraint.json_object)
    if constraint.choice is not None:
        if not 1 <= len(constraint.choice) <= 256:
            raise InvalidJob(field, "1 to 256 strings", constraint.choice)
        for word in constraint.choice:
            check_text(field, word, most_bytes=MAX_GRAMMAR_BYTES)
    for text in (constraint.regex, constraint.grammar, constraint.json):
        if isinstance(text, str):
            check_text(field, text, most_bytes=MAX_GRAMMAR_BYTES)
            if not text.strip():
                raise InvalidJob(field, "text that is not empty", text)
    if isinstance(constraint.json, dict) and _depth(constraint.json) > MAX_GRAMMAR_DEPTH:
        raise InvalidJob(field, f"a schema nested at most {MAX_GRAMMAR_DEPTH} levels", constraint.json)


def _depth(schema: object) -> int:
    """Nesting of dicts and lists, counted level by level so that a deep schema cannot exhaust the stack."""
    level: list[object] = [schema]
    for depth in range(MAX_GRAMMAR_DEPTH + 1):
        level = [
            child
            for node in level
            if isinstance(node, dict | list)
            for child in (node.values() if isinstance(node, dict) else node)
        ]
        if not level:
            return depth
    return MAX_GRAMMAR_DEPTH + 1

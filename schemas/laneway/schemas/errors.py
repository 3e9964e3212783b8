"""Errors that both sides of the queue raise. `LanewayError` is the root of every error of this project."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import Enum

_SHOWN = 80  # characters of a refused value that an error may repeat


class LanewayError(Exception):
    """Something Laneway refuses or cannot do, told in one sentence."""


class UsageError(LanewayError):
    """A command was called in a way that cannot work: ends with exit code 2."""


class InvalidJob(LanewayError):
    """A job that cannot be accepted: names the field, what it must be and what was given.

    Of a value that may hold what a user wrote, only its type and size are told.
    """

    def __init__(self, field: str, expected: str, given: object = None, *, private: bool = False) -> None:
        self.field = (
            field if len(field) <= _SHOWN and field.isascii() and field.isprintable() else shown(field)
        )
        self.expected = expected
        self.given = described(given) if private or _is_private(field) else shown(given)
        super().__init__(f"{self.field}: expected {expected}, got {self.given}")


class IllegalTransition(LanewayError):
    """A job was asked to move between two states that the life of a job does not connect."""

    def __init__(self, before: str, after: str) -> None:
        super().__init__(f"a job cannot go from {before} to {after}")


class UnreadableEntry(LanewayError):
    """Bytes in a stream that are not a job of a version this release can read."""


class Words(str):
    """Words that stand for a refused value in an error text: told as they are, without quotes."""

    __slots__ = ()


def shown(value: object) -> str:
    """`value` for an error text: its repr in printable ASCII if that is short, else what `described` says of it."""
    if isinstance(value, Words):
        return str(value)
    if isinstance(value, list | tuple | set | frozenset):
        if len(value) > 8 or not all(isinstance(item, int | float | str | None) for item in value):
            return described(value)
    elif not isinstance(value, int | float | str | bytes | Enum | None):
        return described(value)
    if isinstance(value, int) and value.bit_length() > 128:  # Python itself refuses to print very long ones
        return described(value)
    if isinstance(value, str | bytes) and len(value) > _SHOWN:
        return described(value)
    text = ascii(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def described(value: object) -> str:
    """The type of `value` and its size, with nothing of its content; small numbers, booleans and None as they are."""
    if isinstance(value, Words):
        return str(value)
    if value is None or isinstance(value, bool | float):
        return repr(value)
    if isinstance(value, int):
        return str(value) if value.bit_length() <= 128 else f"an integer of {value.bit_length()} bits"
    name = type(value).__name__
    if isinstance(value, str | bytes | bytearray):
        return f"{name} of length {len(value)}"
    if isinstance(value, list | tuple | dict | set | frozenset):
        return f"{name} of {len(value)} items"
    return name


def _is_private(field: str) -> bool:
    names = [part.partition("[")[0] for part in field.split(".")]
    return names[0] in _PRIVATE or (
        names[0] == "sampling" and len(names) > 1 and names[1] in _PRIVATE_SAMPLING
    )


_PRIVATE = frozenset({"prompt", "prompt_token_ids", "messages", "tools", "template_kwargs", "metadata"})
_PRIVATE_SAMPLING = frozenset({"stop", "bad_words", "structured_outputs"})


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint such as ` (did you mean 'prompt'?)`, or nothing when no known name is close."""
    close = difflib.get_close_matches(name[:_SHOWN], list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""

"""Errors that both sides of the queue raise. `LanewayError` is the root of every error of this project."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_SHOWN = 80  # characters of a refused value that an error may repeat: enough to find it, too few to leak it


class LanewayError(Exception):
    """Something Laneway refuses or cannot do, told in one sentence."""


class UsageError(LanewayError):
    """A command was called in a way that cannot work: ends with exit code 2."""


class InvalidJob(LanewayError):
    """A job that cannot be accepted: names the field, what it must be and what was given."""

    def __init__(self, field: str, expected: str, given: object = None) -> None:
        self.field = field
        self.expected = expected
        self.given = shown(given)
        super().__init__(f"{field}: expected {expected}, got {self.given}")


class IllegalTransition(LanewayError):
    """A job was asked to move between two states that the life of a job does not connect."""

    def __init__(self, before: str, after: str) -> None:
        super().__init__(f"a job cannot go from {before} to {after}")


class UnreadableEntry(LanewayError):
    """Bytes in a stream that are not a job of a version this release can read."""


def shown(value: object) -> str:
    """`value` for an error text: its repr in printable ASCII, at most 80 characters.

    Text longer than that is described by its length only, so that prompts never reach a log.
    """
    if isinstance(value, str | bytes | bytearray) and len(value) > _SHOWN:
        return f"{type(value).__name__} of length {len(value)}"
    if isinstance(value, list | tuple | dict | set | frozenset) and len(value) > 8:
        return f"{type(value).__name__} of {len(value)} items"
    text = ascii(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint such as ` (did you mean 'prompt'?)`, or nothing when no known name is close."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""

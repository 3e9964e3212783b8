"""Plain data: what JSON and MessagePack both carry, from whatever an application has at hand."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import islice
from numbers import Integral, Real
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from laneway.schemas.errors import InvalidJob, Words
from laneway.schemas.text import check_text

MAX_DEPTH = 32
"""Levels of mappings and lists inside one another. Encoders and decoders recurse, so a bound is needed."""
MAX_ITEMS = 100_000
"""Values in one field of free data."""
_INTEGERS = (-(1 << 63), (1 << 64) - 1)  # what MessagePack holds


def fields_of(field: str, value: object) -> dict[str, Any]:
    """The fields in a mapping or a struct, without those that are None, numbers of other libraries made plain.

    Raises:
        InvalidJob: something else, or a name that is not text.
    """
    if isinstance(value, Struct):
        value = asdict(value)
    if not isinstance(value, Mapping):
        raise InvalidJob(field, "a mapping of fields", value, private=True)
    for name in value:
        if not isinstance(name, str):
            raise InvalidJob(field, "names that are text", name, private=True)
    return {name: number(item) for name, item in value.items() if item is not None}


def number(value: Any) -> Any:
    """`value`, a number of another library (such as numpy) being made Python's own. Booleans stay what they are."""
    if type(value) in (int, float, str, bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


def items_of(field: str, value: object, most: int) -> list[Any]:
    """The items of any iterable but text, bytes and mappings, numbers made plain. Takes no more than `most` + 1.

    Raises:
        InvalidJob: not an iterable, or too many items.
    """
    if isinstance(value, str | bytes | bytearray | Mapping) or not isinstance(value, Iterable):
        raise InvalidJob(field, "a list", value, private=True)
    items = [number(item) for item in islice(value, most + 1)]
    if len(items) > most:
        raise InvalidJob(field, f"at most {most} items", Words("more"))
    return items


def plain(field: str, value: object, *, most_bytes: int) -> tuple[Any, int]:
    """A copy of `value` in dicts with text keys, lists, text, finite numbers, booleans and None; and its text's bytes.

    Raises:
        InvalidJob: anything else in it, nested deeper than `MAX_DEPTH`, more than `MAX_ITEMS` values, or too much text.
    """
    copier = _Copier(field, most_bytes)
    copy = copier.copy(value, MAX_DEPTH)
    return copy, most_bytes - copier.bytes_left


class _Copier:
    def __init__(self, field: str, most_bytes: int) -> None:
        self.field = field
        self.most_bytes = most_bytes
        self.bytes_left = most_bytes
        self.items_left = MAX_ITEMS

    def copy(self, value: object, depth: int) -> Any:
        self.items_left -= 1
        if depth == 0 or self.items_left < 0:
            bound = f"{MAX_DEPTH} levels and {MAX_ITEMS} values"
            raise InvalidJob(self.field, f"plain data of at most {bound}", value, private=True)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.key(key): self.copy(item, depth - 1) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.copy(item, depth - 1) for item in value]
        return self.number(value)

    def key(self, key: object) -> str:
        if not isinstance(key, str):
            raise InvalidJob(self.field, "names that are text", key, private=True)
        return self.text(key)

    def text(self, text: str) -> str:
        self.bytes_left -= check_text(self.field, text, most_bytes=self.most_bytes)
        if self.bytes_left < 0:
            raise InvalidJob(self.field, f"at most {self.most_bytes} bytes of text", Words("more"))
        return text

    def number(self, value: object) -> int | float:
        value = number(value)
        if isinstance(value, int) and _INTEGERS[0] <= value <= _INTEGERS[1]:
            return value
        if isinstance(value, float) and math.isfinite(value):
            return value
        expected = "plain data: text, finite numbers of 64 bits, true, false, null, lists and mappings"
        raise InvalidJob(self.field, expected, value, private=True)

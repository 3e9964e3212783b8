"""Options that several commands share, and how what people write becomes values."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

import msgspec

from laneway.schemas.errors import UsageError, shown

_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>ms|s|m|h|d)?")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def add_connection(parser: argparse.ArgumentParser) -> None:
    """`--redis-url`, `--namespace`, `--json`."""
    parser.add_argument(
        "--redis-url", metavar="URL", help="default: LANEWAY_REDIS_URL, else redis://localhost:6379/0"
    )
    parser.add_argument(
        "--namespace",
        metavar="NAME",
        help="first part of every key; default: LANEWAY_NAMESPACE, else laneway",
    )
    parser.add_argument("--json", action="store_true", help="one JSON value (or one a line) for programs")


def connection(options: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `Producer` that `add_connection` collected."""
    return {"redis_url": options.redis_url, "namespace": options.namespace}


def seconds(text: str) -> float:
    """`90s`, `250ms`, `5m`, `2h`, `1d`; a bare number is seconds. For argparse's `type`."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(
            f"expected a duration such as 90s, 250ms, 5m or 2h, got {shown(text)}"
        )
    return float(match["number"]) * _UNITS[match["unit"] or "s"]


def read_text(given: str | None, what: str) -> str:
    """`given` itself; the content of a file for `@path` (`@@` is a plain `@`); standard input for `-` or nothing.

    Raises:
        UsageError: nothing given and nothing piped in, an unreadable file, bytes that are not UTF-8.
    """
    if given is not None and given.startswith("@@"):
        return given[1:]
    if given is not None and given != "-" and not given.startswith("@"):
        return given
    try:
        if given is not None and given.startswith("@"):
            return Path(given[1:]).read_bytes().decode()
        if given is None and sys.stdin.isatty():
            raise UsageError(f"{what}: expected text, @file, or - for standard input, got nothing")
        return sys.stdin.buffer.read().decode().removesuffix("\n")
    except OSError as error:
        raise UsageError(f"{what}: {error.strerror} ({shown(given)})") from None
    except UnicodeDecodeError:
        raise UsageError(f"{what}: expected UTF-8, got other bytes") from None


def read_json(given: str, what: str) -> Any:
    """The JSON value in `given`, which may also be `@path` or `-`. Raises `UsageError`."""
    try:
        return msgspec.json.decode(read_text(given, what))
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"{what}: expected JSON, got something else ({error})") from None

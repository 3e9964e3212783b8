"""What commands of the producer do alike: run on a producer, print values and times."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from laneway.producer.cli.options import connection
from laneway.producer.client import Producer


def with_producer(
    options: argparse.Namespace, run: Callable[[Producer], Awaitable[int]], *, listen: bool = True
) -> int:
    """The exit code of `run`, given a producer on the server that `options` name."""

    async def session() -> int:
        async with Producer(**connection(options), listen=listen) as producer:
            return await run(producer)

    return asyncio.run(session())


def print_json(value: Any) -> None:
    """One value on a line of its own, at once."""
    print(msgspec.json.encode(value).decode(), flush=True)


def print_facts(facts: dict[str, Any]) -> None:
    """Names and values below one another; empty ones are left out, zeros are not. What could steer a terminal is told
    as Python writes it.
    """
    shown = {name: value for name, value in facts.items() if value not in ("", None)}
    width = max(map(len, shown))
    for name, value in shown.items():
        plain = not isinstance(value, str) or value.isprintable()
        print(f"{name:{width}}  {value if plain else repr(value)}")


def when(ms: int) -> str:
    """`2026-12-01 03:12:06Z` for milliseconds since 1970."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def length(ms: int) -> str:
    """A stretch of time, as people read it: `0.250 s`, `4 m 10 s`, `2 h 5 m`."""
    seconds = max(0, ms) / 1000
    if seconds < 60:
        return f"{seconds:.3f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} m" if hours else f"{minutes} m {rest} s"

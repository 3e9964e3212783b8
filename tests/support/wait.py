"""Waiting for facts instead of sleeping."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")


@overload
async def wait_until(
    condition: Callable[[], Awaitable[T | None]], what: str = "", timeout: float = 10.0, pause: float = 0.01
) -> T: ...


@overload
async def wait_until(
    condition: Callable[[], T | None], what: str = "", timeout: float = 10.0, pause: float = 0.01
) -> T: ...


async def wait_until(
    condition: Callable[[], Any], what: str = "", timeout: float = 10.0, pause: float = 0.01
) -> Any:
    """What `condition` returns (or its awaitable brings) as soon as that is true; fails after `timeout` seconds."""
    try:
        async with asyncio.timeout(timeout):
            while True:
                value = condition()
                found = await value if inspect.isawaitable(value) else value
                if found:
                    return found
                await asyncio.sleep(pause)
    except TimeoutError:
        raise AssertionError(f"{what or 'the condition'} did not hold within {timeout:g} s") from None

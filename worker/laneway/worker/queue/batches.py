"""Calls of one turn of the event loop that travel together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Reply = TypeVar("Reply")


class Batches(Generic[Item, Reply]):
    """Gathers the items of concurrent callers and hands each its reply.

    A caller that is cancelled leaves the others alone: its item may have been sent, and its reply is dropped.
    """

    def __init__(self, send: Callable[[Sequence[Item]], Awaitable[Sequence[Reply]]], most: int) -> None:
        """`send` returns as many replies as it gets items, at most `most`. What it raises, every caller raises."""
        self._send = send
        self._most = most
        self._waiting: list[tuple[Item, asyncio.Future[Reply | Exception]]] = []
        self._flushes: set[asyncio.Task[None]] = set()

    async def __call__(self, item: Item) -> Reply:
        """The reply to `item`."""
        future: asyncio.Future[Reply | Exception] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if len(self._waiting) == 1:
            flush = asyncio.create_task(self._flush())
            self._flushes.add(flush)
            flush.add_done_callback(self._flushes.discard)
        reply = await asyncio.shield(future)
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def drain(self) -> None:
        """Return when everything that was sent is answered."""
        while self._flushes:
            await asyncio.wait(self._flushes)

    async def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        if len(waiting) <= self._most:
            return await self._exchange(waiting)
        chunks = [waiting[start : start + self._most] for start in range(0, len(waiting), self._most)]
        await asyncio.gather(*(self._exchange(chunk) for chunk in chunks))
        return None

    async def _exchange(self, chunk: list[tuple[Item, asyncio.Future[Reply | Exception]]]) -> None:
        replies: Sequence[Reply | Exception]
        try:
            replies = await self._send([item for item, _ in chunk])
        except Exception as error:
            replies = [error] * len(chunk)
        except asyncio.CancelledError:  # the event loop ends
            replies = [ConnectionError("closing")] * len(chunk)
        for (_, future), reply in zip(chunk, replies, strict=True):
            if not future.done():
                future.set_result(reply)

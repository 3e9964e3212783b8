"""How much waits in a lane. The lag of a stream is no measure of it: one removal in its middle makes that unknown."""

from __future__ import annotations

import asyncio
from typing import Any

from laneway.schemas.keys import GROUP, HELD, RETURNED, SUSPECTS, Lane
from laneway.worker.errors import QueueUnavailable
from laneway.worker.ports import Depth
from laneway.worker.queue.connection import Connection

_RESTING = {place.encode() for place in (RETURNED, HELD, SUSPECTS)}


async def read_depth(connection: Connection, lane: Lane, key: str) -> Depth:
    """The depth of the lane under `key`. Raises `QueueUnavailable`."""
    length, delivered, owners = await asyncio.gather(
        connection.ask("XLEN", key), _last_delivered(connection, key), _owners(connection, key)
    )
    resting = sum(count for name, count in owners.items() if name in _RESTING)
    in_hand = sum(owners.values()) - resting
    waiting = max(0, length - in_hand)
    return Depth(lane, waiting, in_hand, await _oldest(connection, key, delivered, resting) if waiting else 0)


async def _oldest(connection: Connection, key: str, delivered: str, resting: int) -> int:
    """Acceptance of the entry that waits longest: the first one resting, else the first never delivered."""
    for name in (RETURNED, HELD) if resting else ():
        rest = await connection.ask("XPENDING", key, GROUP, "-", "+", 1, name)
        if rest:
            return _stamp(rest[0][0])
    first = await connection.ask(
        "XRANGE", key, f"({delivered}" if delivered != "0-0" else "-", "+", "COUNT", 1
    )
    return _stamp(first[0][0]) if first else 0


async def _last_delivered(connection: Connection, key: str) -> str:
    try:
        groups = await connection.ask("XINFO", "GROUPS", key)
    except QueueUnavailable as error:
        if "no such key" not in str(error.__cause__):
            raise
        return "0-0"
    for group in groups:
        facts: dict[bytes, Any] = dict(zip(group[::2], group[1::2], strict=False))
        if facts.get(b"name") == GROUP.encode():
            return str(facts[b"last-delivered-id"].decode())
    return "0-0"


async def _owners(connection: Connection, key: str) -> dict[bytes, int]:
    try:
        reply = await connection.ask("XPENDING", key, GROUP)
    except QueueUnavailable as error:
        if not error.missing:
            raise
        return {}
    return {name: int(count) for name, count in reply[3] or ()}


def _stamp(entry: bytes) -> int:
    return int(entry.split(b"-")[0])

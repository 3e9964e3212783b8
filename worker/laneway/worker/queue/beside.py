"""What lies beside the lanes: bodies too large for them, and what is kept of answers in the making."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from laneway.schemas import wire
from laneway.schemas.ids import JobId, WorkerId
from laneway.schemas.keys import PartitionKeys
from laneway.worker.ports import Addition
from laneway.worker.queue.entries import RawEntry

KEEP_JOBS = 64  # jobs per call: with one event each 0.7 ms of server time, measured on a busy machine
KEEP_EVENTS = 2048
"""Events per call. More than one for a job are rare: after an outage."""

Ask = Callable[..., Awaitable[Any]]
Run = Callable[[str, Sequence[str], Sequence[Any]], Awaitable[Any]]


class Beside:
    """Reads and writes it for one worker."""

    def __init__(self, ask: Ask, run: Run, worker: WorkerId, ttl_ms: int) -> None:
        """`ask` sends a command, `run` a script; what is kept lives for `ttl_ms` after it was last read or begun."""
        self._ask = ask
        self._run = run
        self._worker = worker
        self._ttl_ms = ttl_ms

    async def bodies(self, part: PartitionKeys, raws: Sequence[RawEntry]) -> dict[JobId | None, bytes | None]:
        """The jobs that do not lie in their entries; None where one has vanished."""
        beside = [raw.job_id for raw in raws if raw.data is None and raw.job_id is not None]
        found = await asyncio.gather(*(self._ask("GET", part.body(job_id)) for job_id in beside))
        return dict(zip(beside, found, strict=True))

    async def kept(
        self, part: PartitionKeys, raws: Sequence[RawEntry]
    ) -> dict[JobId | None, Sequence[bytes]]:
        """What earlier attempts left of their answers."""
        again = [raw.job_id for raw in raws if raw.attempt > 1 and raw.job_id is not None]
        found = await asyncio.gather(*(self._read(part.kept(job_id)) for job_id in again))
        return dict(zip(again, found, strict=True))

    async def _read(self, key: str) -> Sequence[bytes]:
        events, _ = await asyncio.gather(
            self._ask("LRANGE", key, 0, -1), self._ask("PEXPIRE", key, self._ttl_ms)
        )
        return list(events)

    async def keep(self, parts: Sequence[PartitionKeys], additions: Sequence[Addition]) -> list[int]:
        """See `JobQueue.keep`. `parts` are all partitions of the model's queue."""
        by_part: dict[int, list[Addition]] = {}
        for addition in additions:
            by_part.setdefault(addition.claim.lane.partition, []).append(addition)
        chunks = [(parts[number], chunk) for number, own in by_part.items() for chunk in _chunks(own)]
        replies = await asyncio.gather(*(self._keep(part, chunk) for part, chunk in chunks))
        lengths = {
            addition.claim.job.id: length
            for (_, chunk), reply in zip(chunks, replies, strict=True)
            for addition, length in zip(chunk, reply, strict=True)
        }
        return [lengths[addition.claim.job.id] for addition in additions]

    async def _keep(self, part: PartitionKeys, additions: Sequence[Addition]) -> list[int]:
        words: list[Any] = [self._worker, part.tag, self._ttl_ms]
        for addition in additions:
            words += [addition.claim.job.id, addition.claim.attempt, addition.first, len(addition.events)]
            words += map(wire.encode, addition.events)
        lengths: list[int] = await self._run("keep", [], words)
        return lengths


def _chunks(additions: Sequence[Addition]) -> Iterator[Sequence[Addition]]:
    chunk: list[Addition] = []
    events = 0
    for addition in additions:
        if chunk and (len(chunk) >= KEEP_JOBS or events + len(addition.events) > KEEP_EVENTS):
            yield chunk
            chunk, events = [], 0
        chunk.append(addition)
        events += len(addition.events)
    if chunk:
        yield chunk

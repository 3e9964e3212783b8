"""The queue on Redis Streams: claim, renew, settle, hand back. Each step is one script."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from laneway.schemas import wire
from laneway.schemas.cards import Control, ModelCard, WorkerCard
from laneway.schemas.errors import UnreadableEntry
from laneway.schemas.events import Event
from laneway.schemas.ids import JobId, WorkerId, queue_tag
from laneway.schemas.keys import GROUP, Keys, Lane, PartitionKeys, lanes
from laneway.schemas.outcome import Failed, JobError, Result
from laneway.schemas.record import OUTPUT_EVENTS
from laneway.schemas.script import Script
from laneway.worker.errors import QueueUnavailable, QueueUnfit
from laneway.worker.policy.admission import ClaimPlan
from laneway.worker.policy.quarantine import GROUPS, SEEN, SILENT, SUSPECT, UNBEGUN
from laneway.worker.policy.retry import MAX_BACKOFF_MS
from laneway.worker.ports import Addition, Claim, Depth, Settlement, Unreadable
from laneway.worker.queue import limits
from laneway.worker.queue.admin import check_fit, server_facts
from laneway.worker.queue.batches import Batches
from laneway.worker.queue.beside import Beside
from laneway.worker.queue.connection import Connection
from laneway.worker.queue.depths import read_depth
from laneway.worker.queue.entries import raw_entry, read_entry, unreadable_result

_NAMES = "pull renew settle hand_back retry reclaim start bury sweep isolate lose keep disown"
_SCRIPTS = {name: Script("laneway.worker.queue", name) for name in _NAMES.split()}

Words = tuple[Any, ...]


class QueueOptions(Struct, frozen=True, kw_only=True):
    """What a `RedisQueue` needs to know."""

    url: str
    namespace: str = "laneway"
    partitions: int = 1
    lease_s: float = 15.0
    result_ttl_s: float = 3600.0
    job_ttl_s: float = 7 * 24 * 3600.0
    """Life of a job's record and marker while nobody touches them."""
    beat_s: float = 5.0


class RedisQueue:
    """`JobQueue` over one server, for the jobs of one model."""

    def __init__(self, model: str, worker: WorkerId, options: QueueOptions) -> None:
        self._model = model
        self._worker = worker
        self._options = options
        self._keys = Keys(options.namespace)
        self._parts = [self._keys.of_model(model, p) for p in range(options.partitions)]
        self._connection = Connection(options.url)
        self._settlements: list[Batches[Words, bytes]] = [
            Batches(partial(self._send_settlements, part), limits.SETTLE_CHUNK) for part in self._parts
        ]
        self._beside = Beside(self._ask, self._run, worker, _ms(options.job_ttl_s))
        self._bell = self._connection.blocking(1.0)
        self._control = self._connection.blocking(1.0)
        self._heard: dict[str, str] = {}
        self._cursors: dict[Lane, str] = {}
        self._clock = (0, 0.0)  # the server's milliseconds, and our monotonic seconds then
        self._due: dict[int, float] = {}
        self._mending = asyncio.Lock()
        self._swept_at = 0.0

    # --- opening ----------------------------------------------------------------

    async def open(self, card: ModelCard) -> None:
        """See `JobQueue.open`."""
        check_fit(await server_facts(self._options.url))
        tag = queue_tag(self._model)
        await self._ask("HSETNX", self._keys.models, tag, wire.encode(card))
        known = wire.decode_model(await self._ask("HGET", self._keys.models, tag))
        if known.partitions != self._options.partitions:
            raise QueueUnfit(
                f"partitions: expected {known.partitions}, as the model {self._model} has on this server, "
                f"got {self._options.partitions}"
            )
        if card.context_tokens or not known.context_tokens:
            await self._ask("HSET", self._keys.models, tag, wire.encode(card.after(known)))
        for part in self._parts:
            last = await self._ask("XREVRANGE", part.control, "+", "-", "COUNT", 1)
            self._heard[part.control] = last[0][0].decode() if last else "0-0"
        await self._make_groups()
        await asyncio.gather(*(self._ask("SCRIPT", "LOAD", script.source) for script in _SCRIPTS.values()))
        await self._read_clock()

    async def close(self) -> None:
        """See `JobQueue.close`."""
        for settlements in self._settlements:
            await settlements.drain()
        await self._bell.close()
        await self._control.close()
        await self._connection.close()

    async def _make_groups(self) -> None:
        """Groups at 0, never `$`: with removal at the end, 0 is exactly the unfinished jobs."""
        for partition, part in enumerate(self._parts):
            for lane in lanes(partition):
                try:
                    await self._ask("XGROUP", "CREATE", part.lane(lane), GROUP, "0", "MKSTREAM")
                except QueueUnavailable as error:
                    if not str(error.__cause__).startswith("BUSYGROUP"):
                        raise

    async def _mend(self) -> None:
        """Make lanes and groups anew after a flush or failover, one caller at a time and not in a hot loop."""
        if self._mending.locked():
            return
        async with self._mending:
            await self._make_groups()
            await asyncio.sleep(0.2)

    async def _ask(self, *command: Any) -> Any:
        return await self._connection.ask(*command)

    async def _run(self, name: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        script = _SCRIPTS[name]
        try:
            return await self._connection.run(script, keys, arguments)
        except QueueUnavailable as error:
            if not error.missing:
                raise
        await self._mend()
        return await self._connection.run(script, keys, arguments)

    # --- claiming ---------------------------------------------------------------

    async def claim(self, plan: ClaimPlan) -> list[Claim | Unreadable]:
        """See `JobQueue.claim`. All lanes of a plan lie in one partition."""
        order = [lane for stage in plan.stages for lane in stage.lanes]
        if plan.total <= 0 or not order:
            return []
        part = self._parts[order[0].partition]
        stages: list[int] = []
        for stage in plan.stages:
            stages += [len(stage.lanes), stage.cap]
        keys = [part.held, *(part.lane(lane) for lane in order)]
        words = [GROUP, self._worker, part.tag, plan.total, _ms(self._options.job_ttl_s), SUSPECT]
        reply = await self._run("pull", keys, [*words, len(plan.stages), *stages])
        self._clock = (reply[0], time.monotonic())
        if reply[1]:
            await self._mend()
        self._due[order[0].partition] = time.monotonic() + reply[2] / 1000 if reply[2] >= 0 else math.inf
        return await self._read(part, order, reply[0], reply[3:])

    async def _read(
        self, part: PartitionKeys, order: Sequence[Lane], now_ms: int, items: Sequence[Any]
    ) -> list[Claim | Unreadable]:
        raws = [raw_entry(item, order) for item in items]
        bodies, kept = await asyncio.gather(self._beside.bodies(part, raws), self._beside.kept(part, raws))
        sides = [(bodies.get(raw.job_id, raw.data), kept.get(raw.job_id, ())) for raw in raws]
        return [read_entry(raw, body, now_ms, left) for raw, (body, left) in zip(raws, sides, strict=True)]

    async def isolate(
        self, partition: int, *, empty: bool, idle: bool = False, beside: Sequence[Claim] = ()
    ) -> list[Claim | Unreadable] | None:
        """See `JobQueue.isolate`."""
        part, order = self._parts[partition], lanes(partition)
        mine_ms = _ms(limits.QUARANTINE_LEASES * self._options.lease_s)
        words = [
            GROUP,
            self._worker,
            part.tag,
            _ms(self._options.job_ttl_s),
            mine_ms,
            empty + (empty and idle),
        ]
        group = [len(beside), max((claim.losses for claim in beside), default=0)]
        keys = [part.quarantine, *(part.lane(lane) for lane in order)]
        reply = await self._run("isolate", keys, [*words, *group, SUSPECT, *GROUPS])
        return await self._read(part, order, reply[0], reply[2:]) if reply[1] else None

    async def disown(self, held: Sequence[Claim]) -> int:
        """See `JobQueue.disown`."""
        returned = 0
        for partition, part in enumerate(self._parts):
            mine = [f"{claim.lane.name}|{claim.entry}" for claim in held if claim.lane.partition == partition]
            keys = [part.bell, *(part.lane(lane) for lane in lanes(partition))]
            returned += await self._run("disown", keys, [GROUP, self._worker, part.tag, *mine])
        return returned

    async def reclaim(self) -> int:
        """See `JobQueue.reclaim`."""
        return sum([await self._reclaim(partition, part) for partition, part in enumerate(self._parts)])

    async def _reclaim(self, partition: int, part: PartitionKeys) -> int:
        moved, order = 0, lanes(partition)
        for _ in range(limits.RECLAIM_CALLS):
            cursors = [word for lane in order for word in (lane.name, self._cursors.get(lane, "-"))]
            keys = [part.bell, part.held, *(part.lane(lane) for lane in order)]
            words = [GROUP, part.tag, _ms(self._options.lease_s), limits.RECLAIM_WINDOW, 2 * MAX_BACKOFF_MS]
            reply = await self._run("reclaim", keys, [*words, SUSPECT, SILENT, UNBEGUN, *cursors])
            moved += reply[0]
            self._cursors.update(zip(order, (word.decode() for word in reply[2:]), strict=True))
            if reply[1]:
                await self._mend()
            if not any(self._cursors[lane] != "-" for lane in order):
                break
        return moved

    async def wait(self, timeout: float) -> None:
        """See `JobQueue.wait`."""
        bells = [part.bell for part in self._parts]
        await self._bell.ask("BLPOP", *bells, min(timeout, 1.0))

    def due_in(self) -> float:
        """See `JobQueue.due_in`."""
        return max(0.0, min(self._due.values(), default=math.inf) - time.monotonic())

    # --- holding ----------------------------------------------------------------

    async def renew(self, claims: Sequence[Claim]) -> list[JobId]:
        """See `JobQueue.renew`."""
        by_lane: dict[Lane, list[Claim]] = {}
        for claim in claims:
            by_lane.setdefault(claim.lane, []).append(claim)
        calls = []
        for lane, held in by_lane.items():
            held.sort(key=lambda claim: _position(claim.entry))
            part = self._part(lane)
            for start in range(0, len(held), limits.RENEW_CHUNK):
                words: list[Any] = [GROUP, self._worker, part.tag]
                for claim in held[start : start + limits.RENEW_CHUNK]:
                    words += [claim.entry, claim.job.id, claim.attempt]
                calls.append(self._run("renew", [part.lane(lane)], words))
        return [JobId(lost.decode()) for reply in await asyncio.gather(*calls) for lost in reply]

    async def start(self, claim: Claim) -> None:
        """See `JobQueue.start`."""
        record = self._part(claim.lane).job(claim.job.id)
        await self._run("start", [record], [claim.attempt])

    async def keep(self, additions: Sequence[Addition]) -> list[int]:
        """See `JobQueue.keep`."""
        return await self._beside.keep(self._parts, additions)

    # --- ending -----------------------------------------------------------------

    async def settle(self, claim: Claim, result: Result) -> Settlement:
        """See `JobQueue.settle`."""
        return await self._settle(claim, result, b"")

    async def dead_letter(self, claim: Claim, result: Result) -> Settlement:
        """See `JobQueue.dead_letter`."""
        return await self._settle(claim, result, wire.encode_job(claim.job))

    async def _settle(self, claim: Claim, result: Result, letter: bytes) -> Settlement:
        error = result.outcome.error.code if isinstance(result.outcome, Failed) else ""
        words = (
            claim.lane.name, claim.entry, claim.job.id, claim.attempt, wire.encode(result), result.state.value, error,
            letter,
        )  # fmt: skip
        reply = await self._settlements[claim.lane.partition](words)
        return Settlement(reply.decode().lower())

    async def _send_settlements(self, part: PartitionKeys, jobs: Sequence[Words]) -> list[bytes]:
        words = [GROUP, part.tag, _ms(self._options.result_ttl_s)]
        for job in jobs:
            words += job
        replies: list[bytes] = await self._run("settle", [part.load, part.dead], words)
        return replies

    async def hand_back(self, claims: Sequence[Claim]) -> None:
        """See `JobQueue.hand_back`."""
        by_part: dict[int, list[Any]] = {}
        for claim in claims:
            words = by_part.setdefault(claim.lane.partition, [])
            words += [claim.lane.name, claim.entry, claim.job.id, claim.attempt]
        for partition, words in by_part.items():
            part = self._parts[partition]
            for start in range(0, len(words), 4 * limits.RENEW_CHUNK):
                chunk = words[start : start + 4 * limits.RENEW_CHUNK]
                await self._run("hand_back", [part.bell], [GROUP, self._worker, part.tag, *chunk])

    async def retry(self, claim: Claim, error: JobError, delay_ms: int) -> bool:
        """See `JobQueue.retry`."""
        part = self._part(claim.lane)
        reply = await self._run(
            "retry",
            [part.lane(claim.lane), part.job(claim.job.id), part.held],
            [GROUP, self._worker, claim.entry, claim.attempt, delay_ms, error.code, claim.lane.name],
        )
        return bool(reply)

    async def lose(self, claim: Claim, error: JobError) -> bool:
        """See `JobQueue.lose`."""
        part = self._part(claim.lane)
        keys = [part.lane(claim.lane), part.job(claim.job.id), part.bell]
        words = [GROUP, self._worker, claim.entry, claim.attempt, error.code, SEEN]
        return bool(await self._run("lose", keys, words))

    async def bury(self, entry: Unreadable) -> None:
        """See `JobQueue.bury`."""
        part = self._part(entry.lane)
        job_id = entry.job_id or JobId("")
        result = b""
        if entry.job_id is not None:
            result = wire.encode(unreadable_result(entry, job_id, self._model, self.now_ms()))
        own = (part.job(job_id), part.result(job_id), part.load, part.kept(job_id))
        keys = [part.lane(entry.lane), part.dead, *own]
        ttl_ms = _ms(self._options.result_ttl_s)
        words = [GROUP, entry.entry, entry.reason, job_id, result, ttl_ms, entry.lane.name, limits.KEPT_BYTES]
        await self._run("bury", keys, words)

    # --- telling ----------------------------------------------------------------

    async def publish(self, events: Mapping[str, Sequence[Event]]) -> set[str]:
        """See `JobQueue.publish`. NOMKSTREAM: a stream that its reader let fade is not made again."""
        outputs = list(events)
        replies = await asyncio.gather(
            *(
                self._ask(
                    "XADD", output, "NOMKSTREAM", "MAXLEN", "~", limits.OUTPUT_ENTRIES, "*", OUTPUT_EVENTS,
                    wire.encode(tuple(events[output])),
                )
                for output in outputs
            )
        )  # fmt: skip
        return {output for output, entry in zip(outputs, replies, strict=True) if entry is None}

    async def controls(self, timeout: float) -> list[Control]:
        """See `JobQueue.controls`."""
        names = list(self._heard)
        block = max(1, int(min(timeout, 1.0) * 1000))
        command = ("XREAD", "COUNT", 1000, "BLOCK", block, "STREAMS", *names, *self._heard.values())
        reply = await self._control.ask(*command)
        heard: list[Control] = []
        for name, entries in reply or ():
            self._heard[name.decode()] = entries[-1][0].decode()
            for _, fields in entries:
                try:
                    heard.append(
                        wire.decode_control(dict(zip(fields[::2], fields[1::2], strict=False))[b"e"])
                    )
                except (UnreadableEntry, KeyError):
                    continue  # somebody else's entry, or a newer release's
        return heard

    async def beat(self, card: WorkerCard) -> None:
        """See `JobQueue.beat`."""
        fade = _ms(limits.BEATS * self._options.beat_s)
        await self._ask("SET", self._keys.worker(self._worker), wire.encode(card), "PX", fade)
        await self._read_clock()
        if time.monotonic() - self._swept_at > limits.SWEEP_S:
            self._swept_at = time.monotonic()
            await self.sweep()

    async def sweep(self, idle_ms: int = limits.IDLE_CONSUMER_MS) -> int:
        """Forget consumers that hold nothing and were idle for `idle_ms`; returns how many."""
        calls = [
            self._run("sweep", [part.lane(lane)], [GROUP, idle_ms])
            for partition, part in enumerate(self._parts)
            for lane in lanes(partition)
        ]
        return sum(await asyncio.gather(*calls))

    async def depths(self) -> list[Depth]:
        """See `JobQueue.depths`."""
        order = [lane for partition in range(len(self._parts)) for lane in lanes(partition)]
        read = (read_depth(self._connection, lane, self._part(lane).lane(lane)) for lane in order)
        return list(await asyncio.gather(*read))

    # --- time -------------------------------------------------------------------

    def now_ms(self) -> int:
        """See `JobQueue.now_ms`."""
        server_ms, seen = self._clock
        return server_ms + round((time.monotonic() - seen) * 1000)

    async def _read_clock(self) -> None:
        seconds, micros = await self._ask("TIME")
        self._clock = (int(seconds) * 1000 + int(micros) // 1000, time.monotonic())

    def _part(self, lane: Lane) -> PartitionKeys:
        return self._parts[lane.partition]


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _position(entry: str) -> tuple[int, int]:
    stamp, _, count = entry.partition("-")
    return int(stamp), int(count or 0)

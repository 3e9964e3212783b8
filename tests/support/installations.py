"""A queue with both ends in a test's hands: on a real server, or in memory. What conformance tests stand on."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from importlib import resources
from typing import Any, Protocol

import redis.asyncio
from tests.support.builders import MODEL

from laneway.schemas import wire
from laneway.schemas.cards import AttachJob, CancelJob, ModelCard
from laneway.schemas.events import Event
from laneway.schemas.ids import JobId, WorkerId, queue_tag
from laneway.schemas.job import Job
from laneway.schemas.keys import GROUP, Keys, Lane, PartitionKeys, lanes
from laneway.schemas.outcome import Cancelled, Result
from laneway.schemas.record import JobRecord, read_record
from laneway.worker.policy.admission import ClaimPlan, Stage
from laneway.worker.ports import Claim, JobQueue
from laneway.worker.queue.memory import MemoryServer
from laneway.worker.queue.memory_queue import MemoryQueue
from laneway.worker.queue.redis_queue import QueueOptions, RedisQueue

SHORT_LEASE_S = 0.2
TTL_MS = 3_600_000


def plan(total: int = 32, partition: int = 0, throughput: int | None = None) -> ClaimPlan:
    """Latency lanes first, then at most `throughput` jobs (default: as many as fit) of the throughput lanes."""
    order = lanes(partition)
    return ClaimPlan(
        total, (Stage(order[:3], total), Stage(order[3:], total if throughput is None else throughput))
    )


async def take(queue: JobQueue, total: int = 32, **options: Any) -> list[Claim]:
    """What the queue gives, where every entry must be a job."""
    claims = []
    for item in await queue.claim(plan(total, **options)):
        assert isinstance(item, Claim), item
        claims.append(item)
    return claims


class Installation(Protocol):
    """Both ends of one queue."""

    async def queue(self, worker: str = "a", *, lease_s: float = 15.0, partitions: int = 1) -> JobQueue:
        """An open queue of a worker; closed with the installation."""

    async def submit(self, *jobs: Job) -> None:
        """Put jobs into their lanes."""

    async def put(self, lane: Lane, data: bytes, job_id: str | None = None) -> None:
        """Put anything into a lane, by hand."""

    async def result(self, job_id: JobId) -> Result | None:
        """A job's outcome."""

    async def record(self, job_id: JobId) -> JobRecord | None:
        """A job's record."""

    async def kept(self, job_id: JobId) -> int:
        """How many token events of a job are kept."""

    async def model(self) -> ModelCard:
        """What producers are told of the model."""

    async def cancel(self, job_id: JobId) -> str:
        """Cancel a job; the state that the server names."""

    async def attach(self, job_id: JobId, output: str) -> None:
        """Want a job's events on one more output."""

    async def listen(self, output: str) -> None:
        """Read an output from now on."""

    async def heard(self, output: str) -> list[Event]:
        """What came on it."""

    async def dead(self) -> list[dict[str, Any]]:
        """Dead letters: `job_id`, `error` and `data`."""

    async def lapse(self, worker: str) -> None:
        """Let every lease of a worker lapse now."""

    async def forget_readers(self) -> None:
        """Lose every consumer group, as a failover may; in memory nothing is lost."""

    async def flush(self) -> None:
        """Lose everything."""

    async def close(self) -> None:
        """Close every queue."""


class MemoryInstallation:
    """On a `MemoryServer`."""

    def __init__(self) -> None:
        self.server = MemoryServer()

    async def queue(self, worker: str = "a", *, lease_s: float = 15.0, partitions: int = 1) -> JobQueue:
        queue = MemoryQueue(self.server, MODEL, WorkerId(worker), partitions=partitions, lease_s=lease_s)
        await queue.open(ModelCard(name=MODEL, partitions=partitions))
        return queue

    async def submit(self, *jobs: Job) -> None:
        for job in jobs:
            self.server.submit(job)

    async def put(self, lane: Lane, data: bytes, job_id: str | None = None) -> None:
        self.server.add(queue_tag(MODEL), lane, data, JobId(job_id) if job_id else None)

    async def result(self, job_id: JobId) -> Result | None:
        return self.server.result(job_id)

    async def record(self, job_id: JobId) -> JobRecord | None:
        return self.server.record(job_id)

    async def kept(self, job_id: JobId) -> int:
        return len(self.server.kept.get(job_id, ()))

    async def model(self) -> ModelCard:
        return self.server.models[queue_tag(MODEL)]

    async def cancel(self, job_id: JobId) -> str:
        state = self.server.cancel(job_id)
        return state.value if state else ""

    async def attach(self, job_id: JobId, output: str) -> None:
        self.server.attach(job_id, output)

    async def listen(self, output: str) -> None:
        self.server.listen(output)

    async def heard(self, output: str) -> list[Event]:
        return self.server.listen(output)

    async def dead(self) -> list[dict[str, Any]]:
        return [{"job_id": d.job_id, "error": d.error, "data": d.data} for d in self.server.dead]

    async def lapse(self, worker: str) -> None:
        for entries in self.server.lanes.values():
            for entry in entries.values():
                if entry.owner == worker:
                    entry.touched = -1e9

    async def forget_readers(self) -> None:
        return

    async def flush(self) -> None:
        server = self.server
        for known in (server.lanes, server.records, server.results, server.settled, server.kept):
            known.clear()
        server.cancels.clear()

    async def close(self) -> None:
        return


class RedisInstallation:
    """On a real server, with the producer's scripts."""

    def __init__(self, url: str, namespace: str) -> None:
        self.url = url
        self.namespace = namespace
        self.keys = Keys(namespace)
        self.client: Any = redis.asyncio.Redis.from_url(url, protocol=2)
        self._queues: list[RedisQueue] = []

    def part(self, partition: int = 0) -> PartitionKeys:
        """The keys of a partition."""
        return self.keys.of_model(MODEL, partition)

    def lane_key(self, claim: Claim) -> str:
        """The stream of a claim's lane."""
        return self.part(claim.lane.partition).lane(claim.lane)

    async def pending(self, partition: int = 0) -> dict[str, list[tuple[str, int]]]:
        """Entries in hand by consumer: entry and deliveries."""
        found: dict[str, list[tuple[str, int]]] = {}
        for lane in lanes(partition):
            for row in await self.client.xpending_range(
                self.part(partition).lane(lane), GROUP, "-", "+", 20_000
            ):
                pair = (row["message_id"].decode(), row["times_delivered"])
                found.setdefault(row["consumer"].decode(), []).append(pair)
        return found

    async def queue(
        self, worker: str = "a", *, lease_s: float = 15.0, partitions: int = 1, url: str | None = None
    ) -> RedisQueue:
        options = QueueOptions(
            url=url or self.url, namespace=self.namespace, partitions=partitions, lease_s=lease_s
        )
        queue = RedisQueue(MODEL, WorkerId(worker), options)
        self._queues.append(queue)
        await queue.open(ModelCard(name=MODEL, partitions=partitions))
        return queue

    async def run(self, script: str, keys: list[str], words: list[Any], client: Any = None) -> Any:
        """Run one of the producer's scripts."""
        source = resources.files("laneway.producer").joinpath(f"lua/{script}.lua").read_text("utf-8")
        sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
        client = client or self.client
        if not (await client.script_exists(sha))[0]:
            await client.script_load(source)
        return await client.evalsha(sha, len(keys), *keys, *words)

    async def submit(self, *jobs: Job) -> None:
        for job in jobs:
            assert (await self.submit_one(job))[0] == b"NEW"

    async def submit_one(
        self, job: Job, *, most: int = 100_000, most_tokens: int = 0, tokens: int = 1
    ) -> list[Any]:
        """The submit script's reply."""
        partition = int(job.id.split("-")[1], 16)
        part, lane, data = self.part(partition), Lane(partition, job.slo, job.bucket), wire.encode_job(job)
        keys = [part.lane(lane), part.job(job.id), part.body(job.id), part.bell, part.load, part.memory]
        if job.idempotency_key:
            keys.append(part.idempotency(job.idempotency_key))
        beside = "1" if len(data) > wire.INLINE_BYTES else "0"
        words = [
            job.id,
            data,
            beside,
            lane.name,
            TTL_MS,
            TTL_MS,
            most,
            most_tokens,
            tokens,
            job.reply_to or "",
        ]
        reply: list[Any] = await self.run("submit", keys, words)
        return reply

    async def put(self, lane: Lane, data: bytes, job_id: str | None = None) -> None:
        fields: dict[Any, Any] = {"d": data, **({"j": job_id} if job_id else {})}
        await self.client.xadd(self.part(lane.partition).lane(lane), fields)

    async def result(self, job_id: JobId) -> Result | None:
        data = await self.client.get(self.keys.of_job(job_id).result(job_id))
        return None if data is None else wire.decode_result(data)

    async def record(self, job_id: JobId) -> JobRecord | None:
        return read_record(job_id, await self.client.hgetall(self.keys.of_job(job_id).job(job_id)))

    async def kept(self, job_id: JobId) -> int:
        length: int = await self.client.llen(self.keys.of_job(job_id).kept(job_id))
        return length

    async def model(self) -> ModelCard:
        return wire.decode_model(await self.client.hget(self.keys.models, queue_tag(MODEL)))

    async def cancel(self, job_id: JobId) -> str:
        part = self.keys.of_job(job_id)
        keys = [
            part.job(job_id), part.cancel(job_id), part.control, part.result(job_id), part.body(job_id), part.load,
            part.held, part.kept(job_id),
        ]  # fmt: skip
        result = wire.encode(Result(job_id=job_id, outcome=Cancelled()))
        words = [part.tag, GROUP, TTL_MS, wire.encode(CancelJob(job_id=job_id)), result, TTL_MS]
        state: bytes = (await self.run("cancel", keys, words))[0]
        return state.decode()

    async def attach(self, job_id: JobId, output: str) -> None:
        part = self.keys.of_job(job_id)
        control = wire.encode(AttachJob(job_id=job_id, output=output))
        await self.run("attach", [part.job(job_id), part.control, part.result(job_id)], [output, control])

    async def listen(self, output: str) -> None:
        entry = await self.client.xadd(output, {"e": wire.encode(())})
        await self.client.pexpire(output, 60_000)
        await self.client.xdel(output, entry)

    async def heard(self, output: str) -> list[Event]:
        return [e for _, fields in await self.client.xrange(output) for e in wire.decode_events(fields[b"e"])]

    async def dead(self) -> list[dict[str, Any]]:
        letters = [fields for _, fields in await self.client.xrange(self.part().dead)]
        return [
            {
                "job_id": JobId(fields.get(b"j", b"").decode()) or None,
                "error": fields[b"error"].decode(),
                "data": fields.get(b"d") or fields.get(b"raw:d"),
            }
            for fields in letters
        ]

    async def lapse(self, worker: str) -> None:
        for lane in lanes(0):
            key = self.part().lane(lane)
            rows = []
            with suppress(redis.exceptions.ResponseError):  # no such lane
                rows = await self.client.xpending_range(key, GROUP, "-", "+", 1000, worker)
            if entries := [row["message_id"] for row in rows]:
                await self.client.xclaim(key, GROUP, worker, 0, entries, idle=3_600_000, justid=True)

    async def forget_readers(self) -> None:
        for lane in lanes(0):
            with suppress(redis.exceptions.ResponseError):
                await self.client.xgroup_destroy(self.part().lane(lane), GROUP)

    async def flush(self) -> None:
        for pattern in (f"{self.namespace}:*", f"{{{self.namespace}:*"):
            async for key in self.client.scan_iter(match=pattern):
                await self.client.delete(key)

    async def close(self) -> None:
        for queue in self._queues:
            await queue.close()
        await self.client.aclose()

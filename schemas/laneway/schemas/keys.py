"""Every Redis key of Laneway, made in this one place.

Keys that one script touches together share a hash tag `{...}`, so that a cluster keeps them in one slot.
A tag stands for one partition of one model's queue.
"""

from __future__ import annotations

from msgspec import Struct

from laneway.schemas.ids import JobId, ProducerId, WorkerId, parse_job_id, queue_tag
from laneway.schemas.job import Bucket, SloClass

GROUP = "workers"
"""The consumer group on every lane."""

RETURNED, HELD, SUSPECTS = "returned", "held", "suspects"
"""Consumers that are no workers but places to wait: an entry handed back or lost by its worker, one whose back-off
runs, one that was in hand at more than one crash. Worker ids end in a nonce and cannot clash with them."""


class Lane(Struct, frozen=True):
    """One stream of jobs of the same class and bucket, in one partition of one model's queue."""

    partition: int
    slo: SloClass
    bucket: Bucket

    @property
    def name(self) -> str:
        """`latency:short`, for logs and metrics."""
        return f"{self.slo.value}:{self.bucket.value}"


def lanes(partition: int) -> tuple[Lane, ...]:
    """The six lanes of a partition, latency first, short first."""
    return tuple(Lane(partition, slo, bucket) for slo in SloClass for bucket in Bucket)


class Keys(Struct, frozen=True):
    """The keys under one namespace."""

    namespace: str = "laneway"

    # --- not tied to a partition ------------------------------------------------
    @property
    def models(self) -> str:
        """Hash: queue tag -> `ModelCard`. Permanent: says what has ever been served, and in how many partitions."""
        return f"{self.namespace}:models"

    def output(self, producer: ProducerId) -> str:
        """Stream of token and end events for one producer process. Its reader keeps it alive (TTL)."""
        return f"{{{self.namespace}:out:{producer}}}"

    def worker(self, worker: WorkerId) -> str:
        """String: a worker's `WorkerCard`. TTL a few beats."""
        return f"{self.namespace}:worker:{worker}"

    # --- one partition of one model's queue -------------------------------------
    def partition(self, queue: str, partition: int) -> PartitionKeys:
        """The keys of a partition, `queue` being a model's tag."""
        return PartitionKeys(f"{{{self.namespace}:{queue}:{partition}}}")

    def of_model(self, model: str, partition: int) -> PartitionKeys:
        """The keys of a partition of `model`'s queue."""
        return self.partition(queue_tag(model), partition)

    def of_job(self, job_id: str) -> PartitionKeys:
        """The keys beside which the job lives.

        Raises:
            InvalidJob: not the id of a job.
        """
        return self.partition(*parse_job_id(job_id))


class PartitionKeys(Struct, frozen=True):
    """The keys that share one hash tag."""

    tag: str

    def lane(self, lane: Lane) -> str:
        """Stream of waiting and running jobs. Permanent, never trimmed: an entry goes when its job is settled."""
        return f"{self.tag}:lane:{lane.slo.value}:{lane.bucket.value}"

    def job(self, job_id: JobId) -> str:
        """Hash: the record of a job (state, attempt, owner, times). TTL, renewed while it lives."""
        return f"{self.tag}:job:{job_id}"

    def body(self, job_id: JobId) -> str:
        """String: a job too large to travel in its lane. TTL."""
        return f"{self.tag}:body:{job_id}"

    def result(self, job_id: JobId) -> str:
        """String: the one outcome of a job. TTL."""
        return f"{self.tag}:result:{job_id}"

    def kept(self, job_id: JobId) -> str:
        """List: the token events of a job's answer so far (`Kept`), for the attempt after this. Gone when settled, TTL."""
        return f"{self.tag}:kept:{job_id}"

    def cancel(self, job_id: JobId) -> str:
        """String: somebody asked to cancel the job. TTL."""
        return f"{self.tag}:cancel:{job_id}"

    def idempotency(self, key: str) -> str:
        """String: idempotency key -> job id. TTL."""
        return f"{self.tag}:idem:{key}"

    @property
    def bell(self) -> str:
        """List of a few elements, pushed with each job: waiting workers block on it. TTL."""
        return f"{self.tag}:bell"

    @property
    def control(self) -> str:
        """Stream of cancels and attachments, read by every worker of the partition. Capped, TTL."""
        return f"{self.tag}:control"

    @property
    def held(self) -> str:
        """Sorted set: jobs waiting for their back-off, by the millisecond they are due. Gone when empty."""
        return f"{self.tag}:held"

    @property
    def quarantine(self) -> str:
        """String: the worker that empties its engine for the partition's suspects. TTL."""
        return f"{self.tag}:quarantine"

    @property
    def load(self) -> str:
        """Hash: lane name -> tokens of the jobs in it that have not ended. Permanent."""
        return f"{self.tag}:load"

    @property
    def memory(self) -> str:
        """String: whether the server had room for further jobs when a submit last looked. TTL 100 ms."""
        return f"{self.tag}:memory"

    @property
    def written(self) -> str:
        """String: written last before replicas are asked whether they have what came before it. TTL 1 s."""
        return f"{self.tag}:written"

    @property
    def dead(self) -> str:
        """Stream of dead-lettered jobs. Permanent until purged."""
        return f"{self.tag}:dead"

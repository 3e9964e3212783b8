"""Ids are types: swapping two of them is a type error. A job's id says where the job lives."""

from __future__ import annotations

import hashlib
import os
import re
import time
from typing import NewType

from laneway.schemas.errors import InvalidJob

JobId = NewType("JobId", str)
WorkerId = NewType("WorkerId", str)
ProducerId = NewType("ProducerId", str)
AdapterId = NewType("AdapterId", str)

_JOB_ID = re.compile(r"(?P<queue>[0-9a-f]{8})-(?P<partition>[0-9a-f]{3})-[0-9a-f]{32}")
MAX_PARTITIONS = 0xFFF


def queue_tag(model: str) -> str:
    """Eight hex digits that stand for a model in Redis keys and job ids: a model name may hold any character."""
    return hashlib.blake2s(model.encode(), digest_size=4).hexdigest()


def new_job_id(model: str, partition: int) -> JobId:
    """A fresh id: model tag, partition, then 48 bits of milliseconds and 80 random bits, so ids sort by time."""
    stamp = time.time_ns() // 1_000_000
    return JobId(f"{queue_tag(model)}-{partition:03x}-{stamp:012x}{os.urandom(10).hex()}")


def parse_job_id(job_id: str) -> tuple[str, int]:
    """The (model tag, partition) in which the job lives.

    Raises:
        InvalidJob: `job_id` is not the id of a job.
    """
    match = _JOB_ID.fullmatch(job_id) if isinstance(job_id, str) else None
    if match is None:
        raise InvalidJob("job id", "an id returned by submit, such as 1f0a9c3e-000-0199...", job_id)
    return match["queue"], int(match["partition"], 16)


def new_worker_id(node: str) -> WorkerId:
    """`<node>-<8 hex>`: a name lives as long as its process, so a restarted pod never inherits old work."""
    return WorkerId(f"{node}-{os.urandom(4).hex()}")


def new_producer_id() -> ProducerId:
    """Eight random bytes in hex: the name of one producer process' output stream."""
    return ProducerId(os.urandom(8).hex())


def choose_partition(key: str, partitions: int) -> int:
    """The partition of `key` by rendezvous hashing, so that a change of `partitions` moves few keys.

    `key` is the LoRA id where a job has one (a partition is also the adapter's shard), else the
    idempotency key or the job's own randomness.
    """
    if partitions == 1:
        return 0
    weights = [hashlib.blake2s(f"{p}:{key}".encode(), digest_size=8).digest() for p in range(partitions)]
    return max(range(partitions), key=weights.__getitem__)

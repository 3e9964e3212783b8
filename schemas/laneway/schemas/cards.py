"""What workers tell of themselves and of their model, and what is told to them."""

from __future__ import annotations

from msgspec import Struct

from laneway.schemas.ids import JobId, WorkerId


class ModelCard(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a producer may know of a model: enough to refuse at submit what a worker would refuse later."""

    name: str
    partitions: int = 1
    context_tokens: int = 0
    """Most tokens of prompt and answer together; 0: unknown."""
    vocabulary: int = 0
    """Token ids run from 0 to this, exclusive; 0: unknown."""
    adapters: tuple[str, ...] = ()


class WorkerCard(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker publishes with each beat."""

    id: WorkerId
    model: str
    phase: str = "starting"
    """`starting`, `ready`, `draining`."""
    engine: str = ""
    seats: int = 0
    seats_free: int = 0
    jobs: int = 0
    adapters: tuple[str, ...] = ()
    waits: dict[str, str] = {}
    """Why the first job of a lane waits for a seat of this worker, by class and bucket: `throughput.short`."""


class CancelJob(Struct, frozen=True, kw_only=True, tag="cancel"):
    """Stop the job, wherever it is."""

    job_id: JobId


class AttachJob(Struct, frozen=True, kw_only=True, tag="attach"):
    """Publish the job's events to one more output stream."""

    job_id: JobId
    output: str


Control = CancelJob | AttachJob

"""What workers tell of themselves and of their model, and what is told to them."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from laneway.schemas.ids import JobId, WorkerId


class Floor(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The least that service takes on an engine that has nothing else to do. Zeros: nothing is known to be too short."""

    prompt_s: float = 0.0
    """Seconds per token of the prompt; 0 where a prefix cache may hold it."""
    token_s: float = 0.0
    """Seconds per token of the answer."""

    def seconds(self, prompt_tokens: int, answer_tokens: int) -> float:
        """Seconds from the start to the last of `answer_tokens`, of which there is always one."""
        return self.prompt_s * prompt_tokens + self.token_s * max(1, answer_tokens)


class ModelCard(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a producer may know of a model: enough to refuse at submit what a worker would refuse later."""

    name: str
    partitions: int = 1
    context_tokens: int = 0
    """Most tokens of prompt and answer together; 0: unknown."""
    vocabulary: int = 0
    """Token ids run from 0 to this, exclusive; 0: unknown."""
    adapters: tuple[str, ...] = ()
    floor: Floor | None = None
    """What holds for each worker that has served it so far; None: none has told."""

    def after(self, known: ModelCard) -> ModelCard:
        """This card, where `known` is what other workers have told: their floor may be lower."""
        mine, theirs = self.floor, known.floor
        if mine is None or theirs is None:
            return replace(self, floor=mine or theirs)
        lower = Floor(prompt_s=min(mine.prompt_s, theirs.prompt_s), token_s=min(mine.token_s, theirs.token_s))
        return replace(self, floor=lower)


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
    partitions: int = 1
    gate: int = 0
    """Jobs in hand that wait to go into the engine."""
    kv_usage: float = 0.0
    """Share of KV blocks in use, 0 to 1."""
    budget: int = 0
    """Tokens of a step by the latest plan; 0: none was made."""
    plans_s: float = 0.0
    """Admission plans a second, over the last ten or so."""
    cost_error: float = 0.0
    """Mean relative error of the predicted step time, 0 to 1 and more."""
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

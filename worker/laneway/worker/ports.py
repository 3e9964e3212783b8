"""What the work needs from outside, as Protocols: a queue of jobs and an engine that runs them.

Each has two implementations that pass one conformance suite (`tests/conformance`): Redis and memory, vLLM and fake.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Protocol

from msgspec import Struct

from laneway.schemas.cards import Control, ModelCard, WorkerCard
from laneway.schemas.events import Event
from laneway.schemas.ids import AdapterId, JobId
from laneway.schemas.job import Job
from laneway.schemas.keys import Lane
from laneway.schemas.outcome import JobError, Result, TokenLogprob
from laneway.schemas.record import Kept
from laneway.worker.policy.admission import ClaimPlan

# --- the queue ---------------------------------------------------------------


class Claim(Struct, frozen=True, kw_only=True):
    """A job in hand: this worker owns it until its lease lapses."""

    job: Job
    lane: Lane
    entry: str
    """The job's entry in its lane."""
    attempt: int
    """Number of this attempt, from 1. Only the latest attempt of a job may settle it: it is the fence."""
    failures: int = 0
    """Earlier attempts that failed through no fault of the job. Hand-backs do not count."""
    losses: int = 0
    """Earlier attempts whose worker or engine died with the job in hand."""
    evidence: int = 0
    """Weight of those of them at which the job had the engine to itself, see `policy.quarantine`."""
    isolated: bool = False
    """It has the engine to itself now."""
    submitted_ms: int = 0
    """Acceptance, by Redis' clock."""
    claimed_ms: int = 0
    """This claim, by Redis' clock."""
    deadline: float | None = None
    """When the job expires, in seconds of this process' monotonic clock (`time.monotonic`)."""
    cancelled: bool = False
    """Somebody had asked to cancel the job before it was claimed."""
    outputs: tuple[str, ...] = ()
    """Output streams that want its events."""
    kept: tuple[Kept, ...] = ()
    """Token events of earlier attempts, from the first on: where the answer may go on."""


class Addition(Struct, frozen=True):
    """Token events of a job in hand that are to be kept, beginning with the one numbered `first`."""

    claim: Claim
    first: int
    events: Sequence[Kept]


class Unreadable(Struct, frozen=True, kw_only=True):
    """An entry of a lane that is not a job. It is dead-lettered by `JobQueue.bury`, never retried."""

    lane: Lane
    entry: str
    reason: str
    job_id: JobId | None = None
    """Known when the entry was a job once, for example one whose body has vanished: its consumer then gets `Failed`."""
    attempt: int = 0
    outputs: tuple[str, ...] = ()


class Settlement(Enum):
    """What became of an outcome that a worker wanted to store."""

    STORED = "stored"
    """It is the job's result."""
    REPEATED = "repeated"
    """This very attempt had stored it already: the reply had been lost."""
    FENCED = "fenced"
    """Refused: a later attempt owns the job, or another result was there first. Nothing changed."""


class Depth(Struct, frozen=True):
    """How much waits in a lane and how much of it is in hand somewhere."""

    lane: Lane
    waiting: int
    pending: int
    oldest_ms: int = 0
    """When the job that waits longest was accepted, by Redis' clock; 0: none waits, or it is not known."""


class JobQueue(Protocol):
    """Jobs of one model, as one worker sees them. Every method may raise `QueueUnavailable`."""

    async def open(self, card: ModelCard) -> None:
        """Check that the server is fit, create lanes and groups, register the model.

        May be called again. A card without the context length, from before the engine is up, replaces none that has it.

        Raises:
            QueueUnfit: too old a server, an evicting memory policy, or another number of partitions in use.
        """

    async def close(self) -> None:
        """Give up connections. Jobs in hand stay leased: hand them back first."""

    async def claim(self, plan: ClaimPlan) -> list[Claim | Unreadable]:
        """Take waiting jobs as planned, each under a new lease. Jobs that have a result already are dropped."""

    async def isolate(
        self, partition: int, *, empty: bool, idle: bool = False, beside: Sequence[Claim] = ()
    ) -> list[Claim | Unreadable] | None:
        """Look for suspects, jobs that were in hand at more than one crash: `claim` leaves them alone.

        With `empty`, suspects to run with nothing else in the engine than those of `beside`, a group that was not full;
        `idle` tells that this worker has nothing else to do. Without, an empty list: this worker is appointed to let its
        engine run empty and ask again; only one at a time is, asking keeps it so, and one that is not empty yet gives way
        to one that is, or that runs suspects, `beside`, already. None: there are no suspects for this worker, or another
        sees to them.
        """

    async def disown(self, held: Sequence[Claim]) -> int:
        """Return to their lanes, at no cost, jobs that are this worker's but not in `held`: the reply to their claim was
        lost. No claim may be under way. How many there were."""

    async def reclaim(self) -> int:
        """Offer jobs again whose lease has lapsed, at the front of their lanes, and count the loss; return how many."""

    async def wait(self, timeout: float) -> None:
        """Return when a job may have arrived, at the latest after `timeout` seconds."""

    def due_in(self) -> float:
        """Seconds until a back-off ends, by what the last `claim` saw: then there is something to claim, and no bell rings
        for it. Infinite when none runs."""

    async def renew(self, claims: Sequence[Claim]) -> list[JobId]:
        """Extend the leases; return the jobs that are no longer this worker's. Never takes one back."""

    async def start(self, claim: Claim) -> None:
        """Record that the attempt has begun (state `running`): for a suspect before anything is done with it, for others
        as it enters the engine. Best effort."""

    async def keep(self, additions: Sequence[Addition]) -> list[int]:
        """Keep token events of jobs in hand for later attempts. A `first` of 0 begins anew; repeating an addition changes
        nothing; nothing is kept beyond a gap, or of a job that has ended.

        Returns for each how many events are kept now: less than `first` and its own where earlier ones have vanished;
        -1 where the job is not this worker's any more: then nothing was added.
        """

    async def settle(self, claim: Claim, result: Result) -> Settlement:
        """Store the result first, then remove the job from its lane, in one step."""

    async def hand_back(self, claims: Sequence[Claim]) -> None:
        """Return jobs to their lanes at once, in front, at no cost of an attempt."""

    async def retry(self, claim: Claim, error: JobError, delay_ms: int) -> bool:
        """Count a failed attempt and offer the job again once `delay_ms` have passed. False: fenced.

        Repeated after a lost reply, it is true again and counts nothing more."""

    async def lose(self, claim: Claim, error: JobError) -> bool:
        """Count a crash of the engine with the job in it, and offer the job again at once. False: fenced.

        Repeated after a lost reply, it is true again and counts nothing more."""

    async def dead_letter(self, claim: Claim, result: Result) -> Settlement:
        """As `settle`, and keep the whole job with its last error in the dead-letter stream."""

    async def bury(self, entry: Unreadable) -> None:
        """Remove an entry that cannot be read; keep what it held in the dead-letter stream; fail its job if it had one."""

    async def publish(self, events: Mapping[str, Sequence[Event]]) -> set[str]:
        """Append each output stream's events as one entry; return the streams that nobody reads any more."""

    async def controls(self, timeout: float) -> list[Control]:
        """Cancels and attachments since the last call; waits up to `timeout` seconds for one."""

    async def beat(self, card: WorkerCard) -> None:
        """Publish what this worker is and does; it fades by itself a few beats after the last call."""

    async def depths(self) -> list[Depth]:
        """Every lane's depth, read now."""

    def now_ms(self) -> int:
        """The server's clock in milliseconds since 1970, as last seen plus the monotonic time since."""


# --- the engine --------------------------------------------------------------


class EngineInfo(Struct, frozen=True, kw_only=True):
    """What came up."""

    model: str
    version: str
    context_tokens: int
    vocabulary: int
    seats: int
    """Sequences at once: `max_num_seqs`."""
    step_tokens: int
    """Most tokens of one step: `max_num_batched_tokens`."""
    kv_tokens: int
    """Tokens that the KV cache holds."""
    max_loras: int = 0
    """Distinct adapters in the engine at once; 0: adapters are off."""
    prefix_cache: bool = False
    """Whether the beginning of a prompt may be served from an earlier one."""
    burst: int = 1
    """Most tokens that a step adds to one answer: more than one with speculation."""


class StepSums(Struct, frozen=True, kw_only=True):
    """Sums over all steps so far whose duration is known."""

    steps: int = 0
    seconds: float = 0.0
    prefill: int = 0
    """Prompt tokens computed, told when the prompt is through."""
    decodes: int = 0
    """Tokens generated, but the first ones of answers."""
    kv_usage: float = 0.0
    """The share of KV blocks in use after each step, added up."""

    def since(self, before: StepSums) -> StepSums:
        """What has been added since `before`."""
        return StepSums(
            **{name: getattr(self, name) - getattr(before, name) for name in self.__struct_fields__}
        )


class EngineStats(Struct, frozen=True, kw_only=True):
    """The engine's own account of its last step."""

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    """Share of KV blocks in use, 0 to 1."""
    steps: int = 0
    """Steps so far: does not move while the engine hangs."""
    generated_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    timed: StepSums = StepSums()


class Adapter(Struct, frozen=True, kw_only=True):
    """A LoRA adapter on this worker's disk."""

    id: AdapterId
    path: str
    digest: str = ""


class Prepared(Struct, frozen=True, kw_only=True):
    """A job that the engine has checked and tokenised. `native` is the engine's own form of it."""

    job: Job
    prompt_token_ids: tuple[int, ...]
    max_tokens: int
    generated: int = 0
    """Tokens at the end of the prompt that are the beginning of the answer."""
    native: Any = None


class Piece(Struct, frozen=True, kw_only=True):
    """What one step added to one answer of a job."""

    index: int = 0
    text: str = ""
    token_ids: tuple[int, ...] = ()
    finish_reason: str | None = None
    """`stop`, `length` or `abort`, on the last piece of the answer. `abort` is never a completion."""
    stop_reason: str | int | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    cached_tokens: int = 0
    """Prompt tokens that came from the prefix cache."""


Progress = Callable[[str, float], None]
"""Told the phase that begins (`import`, `engine`, `adapters`, `prompts`...) and a share of it done, 0 to 1."""


class Engine(Protocol):
    """Runs prepared jobs. One engine per worker; it may live in other processes."""

    @property
    def info(self) -> EngineInfo:
        """What came up; valid after `start`."""

    @property
    def died(self) -> asyncio.Event:
        """Set, for ever, as soon as the engine is known to be dead."""

    async def start(self, progress: Progress) -> EngineInfo:
        """Bring the engine up.

        Raises:
            EngineStartFailed: with the reason in one sentence.
        """

    async def stop(self) -> None:
        """End the engine and every process of it. Safe to call twice, and when it died."""

    async def prepare(self, job: Job) -> Prepared:
        """Check and tokenise, without touching what runs.

        Raises:
            JobRefused: too long, a token outside the vocabulary, a template's refusal, an unknown adapter...
        """

    def extend(self, prepared: Prepared, generated: Sequence[int]) -> Prepared:
        """A prepared job whose answer begins with `generated`, which must leave room for a token.

        What is generated then follows them, and its text continues theirs, whatever characters the cut divides.
        """

    def generate(self, run: str, prepared: Prepared, priority: int) -> AsyncIterator[Sequence[Piece]]:
        """Run a prepared job under the name `run`; lower `priority` goes first. Ends after the last finish reason.

        Closing the iterator aborts the run.

        Raises:
            JobRefused: the engine refused this job only.
            AttemptFailed: this attempt broke; the engine lives.
            EngineDied: nothing in the engine will end any more.
        """

    async def abort(self, run: str) -> None:
        """Stop a run and free what it holds; unknown names are ignored."""

    async def load_adapter(self, adapter: Adapter) -> None:
        """Make an adapter usable. Must succeed before a job that names it is generated.

        Raises:
            JobRefused: with the reason; the engine is unharmed.
        """

    def stats(self) -> EngineStats:
        """The last step's account; free to call often."""

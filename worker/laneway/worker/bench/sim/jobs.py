"""A simulated job: what it asks, and what became of it."""

from __future__ import annotations

from msgspec import Struct

from laneway.schemas.job import Bucket, SloClass, bucket_of


class SimJob(Struct, kw_only=True, eq=False):
    """One job. Times are in seconds of virtual time; -1 means not yet."""

    id: int
    slo: SloClass
    arrival: float
    prompt: int
    output: int
    """Tokens it will generate. Policies do not see this number."""
    max_tokens: int
    ttft_s: float = 0.0
    """Target for the first token, from arrival; 0: none."""
    tpot_s: float = 0.0
    """Target for the mean time between tokens; 0: none."""
    deadline: float | None = None
    """By when it must have ended; None: any time."""
    tenant: str = "default"
    adapter: str | None = None

    # --- what became of it ---
    admitted: float = -1.0
    first: float = -1.0
    """First token."""
    last: float = -1.0
    """Latest token known of."""
    ended: float = -1.0
    expired: bool = False
    worst_gap: float = 0.0
    generated: int = 0
    """Tokens before the latest preemption; all of them once ended."""
    preempted: int = 0

    # --- the engine's own account ---
    priority: int = 0
    computed: int = 0
    """Prompt tokens of this run computed so far."""
    context: int = 0
    """Prompt of this run: the prompt and all tokens from before a preemption."""
    first_tick: int = -1
    """Tick of its class (see `decoders`) that gives the run's first token."""
    run: int = 0
    """Counts runs, so that what was planned for an earlier run is void."""

    @property
    def latency(self) -> bool:
        """Whether somebody waits for the first token."""
        return self.slo is SloClass.LATENCY

    @property
    def bucket(self) -> Bucket:
        """By its prompt."""
        return bucket_of(self.prompt)

    @property
    def ttft(self) -> float:
        """Seconds from arrival to the first token."""
        return self.first - self.arrival

    @property
    def tpot(self) -> float:
        """Mean seconds between tokens."""
        return (self.ended - self.first) / max(1, self.output - 1)

    @property
    def attained(self) -> bool:
        """Whether it got what it was promised."""
        if self.ended < 0 or self.expired:
            return False
        if self.latency:
            return self.ttft <= self.ttft_s and self.tpot <= self.tpot_s
        return self.deadline is None or self.ended <= self.deadline

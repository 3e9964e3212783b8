"""What the engine's steps cost: profiled at warm-up, followed from then on, with its error told."""

from __future__ import annotations

from laneway.schemas.cards import Floor
from laneway.worker.policy import cost
from laneway.worker.policy.budget import FLOOR, BudgetRule
from laneway.worker.policy.cost import CostModel, Evidence, StepLoad
from laneway.worker.policy.feasible import floor_of
from laneway.worker.ports import EngineInfo, EngineStats, StepSums

UNKNOWN = CostModel(base_s=0.0, prefill_s=0.0, decode_s=0.0, kv_s=0.0)
"""Before anything was measured: steps cost nothing, so no pace keeps work out of the engine."""
STEPS = 16
"""Steps of one observation. Their mean is what the model is held against: it is linear, and vLLM counts a prompt in the
step that ends it, though it was computed over several."""
REFIT = 4
"""Observations between two refits: about every three seconds on an H200."""
READERS = 8
"""Sequences beside which an engine is to keep the default time between tokens (notes 4.3: isolated TPOT at batch 8)."""
SLOWER = 2.0
"""Times that pace which a reader is promised where the engine cannot keep the usual one (notes 4.3: 2x)."""


class Observer:
    """Keeps the cost model of one engine."""

    def __init__(self) -> None:
        self.model = UNKNOWN
        self.floor = Floor()
        """What service takes at least, by the warm-up."""
        self._evidence = Evidence()
        self._seen = StepSums()
        self._kv_tokens = 0
        self._observed = 0

    @property
    def error(self) -> float:
        """Mean absolute relative error of the predictions made so far, 0 to 1 and more; 0: none was made."""
        return self._evidence.error

    def start(self, profile: CostModel | None, stats: EngineStats, info: EngineInfo) -> None:
        """Begin with what the warm-up found, if anything; steps up to `stats` are not looked at."""
        self.model = profile or UNKNOWN
        self.floor = floor_of(profile, prefix_cache=info.prefix_cache, burst=info.burst)
        self._evidence = Evidence(profile)
        self._seen, self._kv_tokens = stats.timed, info.kv_tokens

    def tpot_s(self, tpot_ms: int) -> float:
        """The time between tokens that readers are promised: as set, else 50 ms or what the engine can keep."""
        if tpot_ms:
            return tpot_ms / 1000
        usual = BudgetRule(most=1).tpot_s
        return max(usual, SLOWER * self.model.step_s(FLOOR, READERS, READERS * FLOOR))

    def observe(self, stats: EngineStats) -> CostModel:
        """Take in the steps since the last observation, if they are enough for one; the model from now on."""
        new = stats.timed.since(self._seen)
        if new.steps < STEPS:
            return self.model
        self._seen = stats.timed
        load, seconds = mean_step(new, self._kv_tokens)
        cost.observe(self._evidence, self.model, load, seconds)
        self._observed += 1
        if self._observed % REFIT == 0:
            self.model = cost.solve(self._evidence)
        return self.model


def mean_step(sums: StepSums, kv_tokens: int) -> tuple[StepLoad, float]:
    """The mean load and seconds of at least one step."""
    load = StepLoad(
        prefill=sums.prefill / sums.steps,
        decodes=sums.decodes / sums.steps,
        kv=sums.kv_usage * kv_tokens / sums.steps,
    )
    return load, sums.seconds / sums.steps

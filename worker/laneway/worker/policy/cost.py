"""What one engine step costs: `T = a + b * prefill + d * decodes + c * KV`, in seconds.

The four coefficients come from a profile at warm-up (`fit`) and follow the engine from then on (`observe`, `solve`).
Both are one weighted least squares: evidence is a 4x4 matrix that old observations slowly fade from.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, field

FORGETTING = 0.999
"""Weight that is left of an observation after one more: the last thousand steps (half a minute to a minute on an
H200) decide. From the recursive least squares literature: 0.99 follows noise, 0.9999 misses a change of load."""

ANCHOR = 1e-3
"""Weight of the profile against one observation, per coefficient, relative to its share of a step. Steady load never
shows some coefficients apart; the anchor keeps those where the profile put them."""

TRUSTED_ERROR = 0.20
"""Mean absolute relative error up to which the refined model is used without asking whether the profile was better."""


class StepLoad(Struct, frozen=True):
    """What one step computed, or several on average."""

    prefill: float
    """Prompt tokens."""
    decodes: float
    """Sequences that got one more token."""
    kv: float
    """Context tokens that those sequences attend to."""


class CostModel(Struct, frozen=True, kw_only=True):
    """Seconds per step and per unit of its load, none negative."""

    base_s: float
    """`a`: weights read once, launches, the host's share."""
    prefill_s: float
    """`b`: per prompt token."""
    decode_s: float
    """`d`: per decoding sequence."""
    kv_s: float
    """`c`: per context token of a decoding sequence."""

    def step_s(self, prefill: float, decodes: float, kv: float) -> float:
        """Seconds of a step with this load."""
        return self.base_s + self.prefill_s * prefill + self.decode_s * decodes + self.kv_s * kv

    def prefill_room(self, seconds: float, decodes: float, kv: float) -> float:
        """Prompt tokens that fit into a step of `seconds` beside the decodes; negative when these alone are too slow."""
        return (seconds - self.step_s(0, decodes, kv)) / max(self.prefill_s, 1e-12)


H200_7B = CostModel(base_s=8e-3, prefill_s=33e-6, decode_s=10e-6, kv_s=0.11e-6)
"""A Llama-7B shape in bf16 on an H200. `c` is arithmetic: 512 KiB of KV per token at the card's 4.8 TB/s. The others
were fitted so that the simulator repeats the H200 floods (`laneway bench sim --calibrate`); `a` is above the 3.3 ms in
which the weights can be read, `b` is 54% of the card's 790 TFLOP/s."""


class Evidence(Struct):
    """Normal equations of all observations so far, each scaled by its own duration (relative errors count)."""

    profile: CostModel | None = None
    """What the engine was found to be at warm-up."""
    matrix: list[list[float]] = field(default_factory=lambda: [[0.0] * 4 for _ in range(4)])
    vector: list[float] = field(default_factory=lambda: [0.0] * 4)
    samples: int = 0
    error: float = 0.0
    """Mean absolute relative error (MAPE / 100) of predictions made *before* each observation, fading alike."""
    profile_error: float = 0.0
    """The same, had the profile been asked."""


class Fit(Struct, frozen=True):
    """A model and how wrong it is: mean absolute relative error over what it was fitted to."""

    model: CostModel
    error: float


def fit(profile: Iterable[tuple[StepLoad, float]]) -> Fit:
    """Least squares over (load, seconds) pairs of a warm-up; at least four different loads are needed.

    Raises:
        ValueError: fewer than four observations.
    """
    rows = list(profile)
    if len(rows) < 4:
        raise ValueError(f"profile: expected at least 4 steps, got {len(rows)}")
    evidence = Evidence()
    for load, seconds in rows:
        _add(evidence, load, seconds, keep=1.0)
    model = _solve_nonnegative(evidence.matrix, evidence.vector)
    return Fit(model, sum(_relative_error(model, load, seconds) for load, seconds in rows) / len(rows))


def observe(evidence: Evidence, current: CostModel, load: StepLoad, seconds: float) -> None:
    """Take one step of the running engine into `evidence`. `current` is the model in use: its error is published."""
    if seconds <= 0:
        return
    weight = max(1 - FORGETTING, 1 / (evidence.samples + 1))
    evidence.error += weight * (_relative_error(current, load, seconds) - evidence.error)
    if evidence.profile is not None:
        error = _relative_error(evidence.profile, load, seconds)
        evidence.profile_error += weight * (error - evidence.profile_error)
    _add(evidence, load, seconds, keep=FORGETTING)


def solve(evidence: Evidence) -> CostModel:
    """The refined model: the evidence, held near the profile where it says nothing. The profile itself when the
    refined one has become worse than it and than `TRUSTED_ERROR`."""
    matrix = [row[:] for row in evidence.matrix]
    vector = evidence.vector[:]
    if evidence.profile is not None:
        if evidence.error > max(TRUSTED_ERROR, evidence.profile_error):
            return evidence.profile
        for i, prior in enumerate(_coefficients(evidence.profile)):
            pull = ANCHOR * max(matrix[i][i], 1e-9)
            matrix[i][i] += pull
            vector[i] += pull * prior
    return _solve_nonnegative(matrix, vector)


# --- arithmetic ----------------------------------------------------------------


def _coefficients(model: CostModel) -> tuple[float, float, float, float]:
    return model.base_s, model.prefill_s, model.decode_s, model.kv_s


def _relative_error(model: CostModel, load: StepLoad, seconds: float) -> float:
    return abs(model.step_s(load.prefill, load.decodes, load.kv) - seconds) / seconds


def _add(evidence: Evidence, load: StepLoad, seconds: float, keep: float) -> None:
    row = [x / seconds for x in (1.0, load.prefill, load.decodes, load.kv)]
    for i, x in enumerate(row):
        line = evidence.matrix[i]
        for j, y in enumerate(row):
            line[j] = keep * line[j] + x * y
        evidence.vector[i] = keep * evidence.vector[i] + x
    evidence.samples += 1


def _solve_nonnegative(matrix: list[list[float]], vector: list[float]) -> CostModel:
    """Coefficients >= 0: solve, fix the most negative one at zero, repeat."""
    free = [i for i in range(4) if matrix[i][i] > 0]
    answer = [0.0] * 4
    while free:
        scale = {i: matrix[i][i] ** -0.5 for i in free}  # unit diagonal: the columns differ by 10^5
        scaled = [[matrix[i][j] * scale[i] * scale[j] for j in free] for i in free]
        solved = _eliminate(scaled, [vector[i] * scale[i] for i in free])
        values = {i: value * scale[i] for i, value in zip(free, solved, strict=True)}
        worst = min(free, key=lambda i: values[i] / scale[i])
        if values[worst] >= 0:
            for i, value in values.items():
                answer[i] = value
            break
        free.remove(worst)
    return CostModel(base_s=answer[0], prefill_s=answer[1], decode_s=answer[2], kv_s=answer[3])


def _eliminate(matrix: list[list[float]], vector: list[float]) -> list[float]:
    """Gauss with partial pivoting; a direction that the evidence does not show gets zero."""
    size = len(vector)
    rows = [[*line, value] for line, value in zip(matrix, vector, strict=True)]
    for i in range(size):
        pivot = max(range(i, size), key=lambda r: abs(rows[r][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        if abs(rows[i][i]) < 1e-10:
            continue
        for r in range(i + 1, size):
            factor = rows[r][i] / rows[i][i]
            rows[r] = [x - factor * y for x, y in zip(rows[r], rows[i], strict=True)]
    solution = [0.0] * size
    for i in reversed(range(size)):
        if abs(rows[i][i]) >= 1e-10:
            known = sum(rows[i][j] * solution[j] for j in range(i + 1, size))
            solution[i] = (rows[i][size] - known) / rows[i][i]
    return solution

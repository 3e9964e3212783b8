"""Who is compared, how the rivals are tuned, and whose turn it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from laneway.worker.bench.mixed import policies
from laneway.worker.bench.mixed.drive import MODEL, Load, play
from laneway.worker.bench.mixed.laneway import level1
from laneway.worker.bench.mixed.measure import Figures, measure
from laneway.worker.bench.mixed.policies import Policy
from laneway.worker.ports import Engine
from laneway.worker.warmup import profile

PERMIT_SHARES = (0.5, 0.625, 0.75, 0.875, 0.9375)
"""Of the seats: semaphores that are tried."""
ENOUGH = 0.95
"""Of the best probe's throughput, what a tuned rival must keep: among those, the fastest first token wins."""
TUNING_SEED = 1_000_003
"""Of the probes' load: no seed that is judged."""
RIVALS = ("static", "grouped", "fifo", "priority", "semaphore")
BASELINE = "priority"
OURS = ("level1+2", "level1")
"""Laneway, the whole of it first."""
ABLATIONS = {
    "linger 1 s": {"linger_s": 1.0},
    "tiles of 128": {"floor": 128.0},
    "always lean": {"lean": 2.0},
    "no pause": {"pause": 0.0},
    "always pause": {"pause": 2.0},
    "early steps": {"late": 0.0},
    "wide steps": {"tpot_s": 10.0},
}
"""Both levels with one thing changed, in fields of `Controls`."""
LEVEL2 = ("level2", "level1+2", "ablations")
"""Policies that need Laneway's scheduler in the engine. `level2`: with the tuned semaphore in front."""
SINGLE = (*RIVALS, "level2", "level1", "level1+2")
"""One row each."""
POLICIES = (*SINGLE, "ablations")
TUNED = ("priority", "semaphore", "level2")
"""Of these, the best of several settings is taken."""


class Probe(Struct, frozen=True, kw_only=True):
    """One setting of a rival, tried briefly."""

    policy: str
    knobs: str
    figures: Figures


class Comparison(Struct, kw_only=True):
    """All that was measured."""

    load: Load
    """Of the last seed; the others differ in nothing else."""
    idle: Figures
    """Latency jobs alone in the engine."""
    probes: list[Probe] = field(default_factory=list)
    knobs: dict[str, str] = field(default_factory=dict)
    runs: dict[str, dict[int, Figures]] = field(default_factory=dict)
    """By policy and seed."""


async def compare(
    engine: Engine,
    load: Load,
    seeds: Sequence[int],
    names: Sequence[str],
    variants: Mapping[str, Mapping[str, float]],
    probe_s: float,
    tell: Callable[[str], None],
) -> Comparison:
    """Tune, then play all policies in turns: forward for the first seed, backward for the second, and so on.

    Args:
        names: some of `POLICIES`.
        variants: more rows, each both levels with other fields of `Controls`.
    """
    found = Comparison(load=load, idle=await _idle(engine, load, probe_s, tell))
    admission = level1(await profile(engine, MODEL))
    probing = replace(load, seed=TUNING_SEED, seconds=probe_s)
    field_ = await _field(engine, admission, probing, names, found, tell)
    field_ += _varied(admission, {**(ABLATIONS if "ablations" in names else {}), **variants})
    found.knobs = {policy.name: policy.knobs for policy in field_}
    found.runs = {policy.name: {} for policy in field_}
    for turn, seed in enumerate(seeds):
        found.load = replace(load, seed=seed)
        for policy in field_ if turn % 2 == 0 else reversed(field_):
            figures = await _run(engine, policy, found.load, "run", tell)
            found.runs[policy.name][seed] = figures
    return found


def tuned(probes: Sequence[Probe]) -> int:
    """The place of the best: fastest first tokens (p95) of those with nearly the best throughput."""
    most = max(probe.figures.throughput.tokens_s for probe in probes)

    def rank(place: int) -> tuple[bool, float]:
        figures = probes[place].figures
        ttft = figures.latency.ttft_ms.p95
        slow = figures.throughput.tokens_s < ENOUGH * most
        return slow, float("inf") if ttft is None else ttft

    return min(range(len(probes)), key=rank)


def priorities(seats: int, backlog: int) -> list[Policy]:
    """How much of the backlog is submitted, from what fills the seats to all of it."""
    counts = sorted({min(backlog, seats), min(backlog, round(1.5 * seats)), backlog})
    return [policies.priority(count) for count in counts]


def semaphores(seats: int) -> list[Policy]:
    """Numbers of permits."""
    counts = sorted({max(1, round(share * seats)) for share in PERMIT_SHARES})
    return [policies.semaphore(count) for count in counts]


def _varied(admission: Policy, variants: Mapping[str, Mapping[str, float]]) -> list[Policy]:
    return [
        replace(admission, name=name, level2=controls, knobs=_told(controls))
        for name, controls in variants.items()
    ]


def _told(controls: Mapping[str, float]) -> str:
    return "both levels, " + ", ".join(f"{name}={value:g}" for name, value in controls.items())


async def _field(
    engine: Engine,
    admission: Policy,
    load: Load,
    names: Iterable[str],
    found: Comparison,
    tell: Callable[[str], None],
) -> list[Policy]:
    seats = engine.info.seats
    families: dict[str, list[Policy]] = {
        "static": [policies.static(seats)],
        "grouped": [policies.grouped(seats)],
        "fifo": [policies.fifo(load.backlog)],
        "priority": priorities(seats, load.backlog),
        "semaphore": semaphores(seats),
        "level1": [admission],
        "level1+2": [replace(admission, name="level1+2", level2={})],
        "level2": [replace(policy, name="level2", level2={}) for policy in semaphores(seats)],
    }
    chosen = []
    for name in names:
        family = families.get(name, [])
        if name not in TUNED:
            chosen += family
            continue
        probes = [
            Probe(policy=name, knobs=policy.knobs, figures=await _run(engine, policy, load, "probe", tell))
            for policy in family
        ]
        found.probes += probes
        chosen.append(family[tuned(probes)])
    return chosen


async def _idle(engine: Engine, load: Load, probe_s: float, tell: Callable[[str], None]) -> Figures:
    alone = replace(load, backlog=0, ramp_s=0.0, seed=TUNING_SEED, seconds=probe_s)
    return await _run(engine, Policy(name="idle", make=lambda _: policies.Permits(1)), alone, "alone", tell)


async def _run(
    engine: Engine, policy: Policy, load: Load, label: str, tell: Callable[[str], None]
) -> Figures:
    figures = measure(await play(engine, policy, load, label), load.shape, load.seconds)
    ttft = figures.latency.ttft_ms
    tell(
        f"{label}, seed {load.seed}: {policy.name} {policy.knobs}: "
        f"TTFT p50 {ttft.p50} ms, p95 {ttft.p95} ms, {figures.throughput.tokens_s} tokens/s"
    )
    return figures

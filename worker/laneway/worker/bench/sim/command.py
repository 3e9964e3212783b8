"""`laneway bench sim`: the policies side by side in virtual time, on an H200 that is only computed."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from laneway.schemas.command import Command
from laneway.worker.bench.sim import calibrate, contenders, goodput, report
from laneway.worker.bench.sim.contenders import Contender, play, tuned
from laneway.worker.bench.sim.metrics import Figures
from laneway.worker.bench.sim.workloads import WORKERS, WORKLOADS, Mix


def configure(parser: ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "--workload", choices=[*WORKLOADS, "all"], default="mixed", help="What is offered (default: mixed)."
    )
    parser.add_argument(
        "--seeds", type=int, default=3, help="Runs per policy; medians are shown (default: 3)."
    )
    parser.add_argument("--ablations", action="store_true", help="Also Laneway with one part left out each.")
    parser.add_argument(
        "--goodput",
        action="store_true",
        help="Instead: the highest load at which 90%% get what they were promised.",
    )
    parser.add_argument(
        "--calibrate", action="store_true", help="Instead: the simulator against a real H200."
    )
    parser.add_argument("--json", action="store_true", help="One line of JSON instead of tables.")


def run(args: Namespace) -> int:
    """Simulate and print. Returns 0, or 2 for a number of seeds below one."""
    if args.seeds < 1:
        print(f"--seeds: expected at least 1, got {args.seeds}", file=sys.stderr)
        return 2
    if args.calibrate:
        result = _calibration(args.json)
    elif args.goodput:
        result = _goodput(args.seeds, args.json)
    else:
        names = list(WORKLOADS) if args.workload == "all" else [args.workload]
        result = {name: _workload(name, args.seeds, args.ablations, args.json) for name in names}
    if args.json:
        print(json.dumps(result))
    return 0


def _workload(name: str, seeds: int, ablations: bool, quiet: bool) -> dict[str, Any]:
    mix, workers = WORKLOADS[name], WORKERS.get(name, 1)
    field = list(_field(mix, workers, ablations))
    runs: dict[str, list[Figures]] = {contender.name: [] for contender in field}
    for seed in range(seeds):
        for contender in field:
            _progress(f"{name}: seed {seed}, {contender.name}")
            runs[contender.name].append(play(contender, mix, seed, workers))
    _progress("")
    if not quiet:
        knobs = [f"{contender.name}: {contender.knobs}" for contender in field if contender.knobs]
        print(
            f"\n{name} ({workers} worker{'s' if workers > 1 else ''}, medians of {seeds}; {'; '.join(knobs)})"
        )
        print(report.figures_table(runs), flush=True)
    return {
        "workers": workers,
        "policies": {
            contender.name: {
                "knobs": contender.knobs,
                "median": msgspec.to_builtins(report.median_of(runs[contender.name])),
                "runs": msgspec.to_builtins(runs[contender.name]),
            }
            for contender in field
        },
    }


def _field(mix: Mix, workers: int, ablations: bool) -> Iterator[Contender]:
    """The policies of a workload, the rivals tuned on seed 0 for jobs that got what they were promised."""

    def score(contender: Contender) -> float:
        _progress(f"tuning {contender.name}: {contender.knobs}")
        return play(contender, mix, 0, workers).goodput

    yield contenders.static()
    yield contenders.fifo()
    yield tuned(contenders.priorities(), score)
    yield tuned(contenders.semaphores(), score)
    if workers > 1:
        yield tuned(contenders.silos(workers), score)
    yield contenders.laneway("laneway 1", level2=False)
    yield contenders.laneway()
    if ablations:
        yield from contenders.ablations()


def _goodput(seeds: int, quiet: bool) -> dict[str, Any]:
    result = {}
    for name, mix in goodput.MIXES.items():
        _progress(f"goodput: {name}")
        found = goodput.compare(mix, range(seeds))
        _progress("")
        if not quiet:
            print(f"\n{name}: highest load at which 90% of both classes attain ({goodput.WORKERS} engines)")
            print(report.goodput_table(found), flush=True)
        result[name] = {each.name: {"knobs": each.knobs, "loads": each.loads} for each in found}
    return result


def _calibration(quiet: bool) -> dict[str, Any]:
    spec = calibrate.h200()
    runs: Sequence[tuple[calibrate.Row, Figures]] = [
        (row, calibrate.flood(row, spec)) for row in calibrate.MEASURED
    ]
    offline, idle = calibrate.offline(spec), calibrate.idle_ttft_ms(spec)
    deviation = report.mean_deviation(runs)
    if not quiet:
        print(report.calibration_table(runs))
        print(f"offline {offline:.1f} jobs/s, measured {calibrate.OFFLINE_RATE}")
        print(f"first token of an idle engine {idle:.1f} ms, measured {calibrate.IDLE_TTFT_MS}")
        print(f"mean deviation over all cells: {deviation:.0%}")
    return {
        "mean_deviation": deviation,
        "offline_rate": offline,
        "idle_ttft_ms": idle,
        "rows": {row.name: msgspec.to_builtins(figures) for row, figures in runs},
    }


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


COMMAND = Command("sim", "the scheduling policies side by side, in virtual time", configure, run)

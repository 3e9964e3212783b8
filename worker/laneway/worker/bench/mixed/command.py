"""`laneway bench mixed`: latency traffic over a backlog, policy after policy, on one real engine."""

from __future__ import annotations

import asyncio
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from laneway.schemas.command import Command
from laneway.worker.bench import engine_args
from laneway.worker.bench.mixed import report
from laneway.worker.bench.mixed.compare import LEVEL2, POLICIES, SINGLE, Comparison, compare
from laneway.worker.bench.mixed.drive import Load
from laneway.worker.bench.mixed.identity import identity
from laneway.worker.bench.mixed.plan import SHAPES
from laneway.worker.engine.create import create_engine
from laneway.worker.engine.slo_page import Controls
from laneway.worker.errors import SettingsError
from laneway.worker.settings import WorkerSettings

SMALL_SEATS = 64
"""Engines with fewer seats are offered the small shape unless another is asked for."""
BACKLOG_SEATS = 2
"""Throughput jobs at any time, in seats: enough that the next batch is always there."""


def configure(parser: ArgumentParser) -> None:
    """Arguments of `laneway bench mixed`."""
    engine_args.configure(parser)
    parser.add_argument("--seeds", type=_positive, default=1, metavar="N", help="runs of each policy (1)")
    parser.add_argument("--first-seed", type=int, default=1, metavar="S", help="the first of them (1)")
    parser.add_argument("--seconds", type=_seconds, default=40, metavar="S", help="judged, of each run (40)")
    parser.add_argument("--ramp", type=_seconds, default=8, metavar="S", help="before that, unjudged (8)")
    parser.add_argument("--probe", type=_seconds, default=12, metavar="S", help="judged, when tuning (12)")
    parser.add_argument("--policies", type=_policies, default=SINGLE, metavar="A,B", help=",".join(POLICIES))
    parser.add_argument(
        "--vary",
        type=_variant,
        action="append",
        default=[],
        metavar="NAME=VALUE,...",
        help=f"one more row: both levels with other controls ({', '.join(Controls.__struct_fields__)})",
    )
    parser.add_argument("--shape", choices=tuple(SHAPES), help="lengths and rate; default: by the seats")
    parser.add_argument("--rate", type=_seconds, metavar="R", help="latency jobs per second")
    parser.add_argument("--ttft", type=_positive, metavar="MS", help="target for the first token")
    parser.add_argument("--tpot", type=_positive, metavar="MS", help="target for each of the others")
    parser.add_argument(
        "--backlog", type=_positive, metavar="N", help="throughput jobs at any time (2 x seats)"
    )
    parser.add_argument(
        "--identity", action="store_true", help="first see that jobs get the same tokens in a crowd as alone"
    )
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write mixed.json and mixed.png there")


def run(args: Namespace) -> int:
    """Compare, and print the tables. 0, or an error of the engine."""
    settings = _settings(args)
    found, about = asyncio.run(_compare(args, settings))
    told = report.as_json(found, about)
    print(report.render(found), flush=True)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "mixed.json").write_bytes(msgspec.json.format(msgspec.json.encode(told)))
        print(f"wrote {args.out / 'mixed.json'}\n{report.draw(found, args.out)}")
    if args.json:
        print(msgspec.json.encode(told).decode(), flush=True)
    return 0


async def _compare(args: Namespace, settings: WorkerSettings) -> tuple[Comparison, dict[str, Any]]:
    engine = create_engine(settings)
    begin = time.monotonic()
    try:
        info = await engine.start(lambda phase, share: None)
        _tell(f"{info.version} is up after {time.monotonic() - begin:.0f} s: {info.seats} seats")
        shape = SHAPES[args.shape or ("small" if info.seats < SMALL_SEATS else "large")]
        asked = {"rate": args.rate, "ttft_ms": args.ttft, "tpot_ms": args.tpot}
        shape = replace(shape, **{name: value for name, value in asked.items() if value is not None})
        load = Load(
            shape=shape,
            seed=args.first_seed,
            backlog=args.backlog or BACKLOG_SEATS * info.seats,
            ramp_s=args.ramp,
            seconds=args.seconds,
        )
        if load.backlog < BACKLOG_SEATS * info.seats:
            raise SettingsError(
                f"--backlog: expected at least {BACKLOG_SEATS * info.seats}, two batches, got {load.backlog}"
            )
        seeds = range(args.first_seed, args.first_seed + args.seeds)
        names, variants = args.policies, dict(args.vary)
        if settings.scheduler != "slo":
            names, variants = [name for name in names if name not in LEVEL2], {}
        same = await identity(engine, shape, args.first_seed) if args.identity else None
        if same:
            _tell(f"the same tokens as alone, of {same.jobs} jobs ({same.different} different): {same.equal}")
        found = await compare(engine, load, seeds, names, variants, args.probe, _tell)
        about = {"engine": msgspec.to_builtins(info), "engine_args": settings.engine_args}
        about["identity"] = msgspec.to_builtins(same)
        return found, {**about, "seeds": list(seeds), "wall_s": round(time.monotonic() - begin)}
    finally:
        await engine.stop()


def _settings(args: Namespace) -> WorkerSettings:
    level2 = args.engine == "vllm" and (args.vary or set(LEVEL2) & set(args.policies))
    return engine_args.settings_of(args, ["--scheduler", "slo"] if level2 else [])


def _policies(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    if unknown := [name for name in names if name not in POLICIES]:
        raise ArgumentTypeError(f"expected some of {', '.join(POLICIES)}, got {unknown[0]}")
    return tuple(name for name in POLICIES if name in names)


def _variant(text: str) -> tuple[str, dict[str, float]]:
    found = {}
    for pair in text.split(","):
        name, _, value = pair.partition("=")
        if name not in Controls.__struct_fields__:
            raise ArgumentTypeError(f"expected some of {', '.join(Controls.__struct_fields__)}, got {name}")
        try:
            found[name] = float(value)
        except ValueError:
            raise ArgumentTypeError(f"{name}: expected a number, got {value!r}") from None
    return text, found


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if number < 0:
        raise ValueError
    return number


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


COMMAND = Command(
    "mixed", "scheduling policies side by side on a real engine, under mixed load", configure, run
)

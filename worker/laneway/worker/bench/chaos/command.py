"""`laneway bench chaos`: break things on purpose, and account for every job."""

from __future__ import annotations

import asyncio
from argparse import ArgumentParser, Namespace
from pathlib import Path

import msgspec

from laneway.schemas.command import Command
from laneway.worker.bench.chaos.audit import Report
from laneway.worker.bench.chaos.plan import LEASE_S, Plan, make_plan

FAKE_JOBS, REAL_JOBS = 1000, 24


def configure(parser: ArgumentParser) -> None:
    """Arguments of `laneway bench chaos`."""
    parser.add_argument("--jobs", type=_positive, metavar="N", help="jobs to submit (1000; 24 with vLLM)")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="draws jobs and faults (1)")
    parser.add_argument(
        "--engine",
        choices=("fake", "vllm"),
        default="fake",
        help="vllm: two workers with the demo model; three kills of an engine and two of a worker (fake)",
    )
    parser.add_argument("--workers", type=_positive, default=4, metavar="N", help="worker processes (4)")
    parser.add_argument(
        "--server", choices=("valkey", "redis"), default="valkey", help="which server (valkey)"
    )
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep the logs of workers and server there")
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of a table")


def run(args: Namespace) -> int:
    """Run it; 0 when every promise was kept, 1 when not."""
    from laneway.worker.bench.chaos import real
    from laneway.worker.bench.chaos.run import chaos
    from laneway.worker.bench.chaos.server import find_binary

    binary = find_binary(args.server)
    if args.engine == "vllm":
        lease_s = real.LEASE_S
        report = asyncio.run(real.chaos(args.jobs or REAL_JOBS, binary, args.logs))
    else:
        lease_s = LEASE_S
        plan = make_plan(args.jobs or FAKE_JOBS, args.seed, args.workers)
        if not args.json:
            print(_announcement(plan, args), flush=True)
        report = asyncio.run(chaos(plan, args.workers, binary, keep=args.logs))
    if args.json:
        print(msgspec.json.encode(report).decode(), flush=True)
    else:
        print(render(report, lease_s))
    return 0 if report.clean else 1


def render(report: Report, lease_s: float) -> str:
    """The report as a table: what was counted, and what was promised."""
    states = ", ".join(f"{count} {state}" for state, count in report.states.items())
    exits = ", ".join(f"{count} with {code}" for code, count in report.exits.items()) or "none"
    rows = [
        ("accepted", report.accepted, ""),
        ("outcomes", report.outcomes, states),
        ("missing", report.missing, "must be 0"),
        ("double", report.double, "must be 0"),
        ("innocent", report.innocent, "failed without fault; must be 0"),
        ("wrong", report.wrong, "ended as nobody asked; must be 0"),
        ("garbled", report.garbled, "not what an undisturbed run answers; must be 0"),
        ("poison", report.poison, f"found out, of {report.poison_sent}"),
        ("left waiting", report.waiting, "must be 0"),
        ("left in hand", report.pending, "must be 0"),
        (
            "recovery",
            f"{report.recovery_s_max:.1f} s",
            f"longest of {report.recoveries}, p50 {report.recovery_s_p50:.1f} s, p99 {report.recovery_s_p99:.1f} s; "
            f"{report.recovery_up_s_max:.1f} s while the server was up; a lease is {lease_s:g} s",
        ),
        ("late", report.late, "longer than two leases with the server up; must be 0"),
        ("lag", f"{report.lag_s_max:.1f} s", "longest that this process itself waited for a processor"),
        ("hit again", f"{report.again_s_max:.1f} s", f"longest of {report.again}"),
        ("of suspects", f"{report.suspect_s_max:.1f} s", f"longest of {report.suspects}"),
        ("orphans", report.orphans, "processes of engines without a worker; must be 0"),
        ("ends of workers", "", exits),
    ]
    lines = [f"{name:<16}{value!s:>8}  {note}".rstrip() for name, value, note in rows]
    return "\n".join(
        [*lines, *report.faults, "", "every promise kept" if report.clean else "PROMISES BROKEN"]
    )


def _announcement(plan: Plan, args: Namespace) -> str:
    faults: dict[str, int] = {}
    for strike in plan.strikes:
        faults[strike.fault.value] = faults.get(strike.fault.value, 0) + 1
    broken = ", ".join(f"{count} x {fault}" for fault, count in faults.items())
    return f"{len(plan.arrivals)} jobs in {plan.seconds:.0f} s on {args.workers} workers, seed {args.seed}: {broken}"


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


COMMAND = Command("chaos", "kill, freeze and cut off real workers, and account for every job", configure, run)

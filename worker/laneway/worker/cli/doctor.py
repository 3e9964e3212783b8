"""`laneway doctor`: is everything here that a worker or a producer needs, and safe."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace

import msgspec

from laneway.schemas.command import Command
from laneway.worker.cli.checks import Check, check_engine, check_packages, check_python, check_server
from laneway.worker.errors import SettingsError
from laneway.worker.settings import load_settings, mask_url
from laneway.worker.table import table


def configure(parser: ArgumentParser) -> None:
    """Arguments of `laneway doctor`."""
    parser.add_argument(
        "--redis-url", metavar="URL", help="default: LANEWAY_REDIS_URL, else redis://127.0.0.1:6379/0"
    )
    parser.add_argument("--quick", action="store_true", help="do not import the engine, which takes seconds")
    parser.add_argument("--json", action="store_true", help="one JSON value for programs")


def run(args: Namespace) -> int:
    """Print the report; 1 when anything failed."""
    checks = [*check_python(), *check_packages()]
    if not args.quick:
        if sys.stderr.isatty():
            print("importing the engine...", file=sys.stderr)
        checks += check_engine()
    checks += _server(args.redis_url)
    failed = any(check.status == "FAIL" for check in checks)
    if args.json:
        print(msgspec.json.encode({"ok": not failed, "checks": checks}).decode())
    else:
        print(_report(checks))
    return 1 if failed else 0


def _server(url: str | None) -> list[Check]:
    options = ["--redis-url", url] if url else []
    try:
        chosen = load_settings(options, os.environ).redis_url
    except SettingsError as error:
        return [
            Check("settings", "FAIL", problem, "correct or unset it") for problem in str(error).splitlines()
        ]
    if chosen.startswith("memory:"):
        return [Check("server", "OK", "memory://: jobs live in the worker's process")]
    return check_server(chosen, mask_url(chosen))


def _report(checks: list[Check]) -> str:
    lines = [table(("", "check", "found"), [(check.status, check.name, check.found) for check in checks])]
    lines += [f"{check.status} {check.name}: {check.advice}" for check in checks if check.advice]
    return "\n".join(lines)


COMMAND = Command("doctor", "check packages, engine, GPU and server", configure, run)

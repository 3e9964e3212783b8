"""What a package adds to the `laneway` program. Each package lists its own in the entry point `laneway.commands`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """One subcommand of `laneway`."""

    name: str
    help: str
    """One line, for the list of commands."""
    configure: Callable[[ArgumentParser], None]
    """Add the subcommand's own arguments."""
    run: Callable[[Namespace], int]
    """Do it; the return value is the exit code."""
    takes_more: bool = False
    """Arguments that `configure` does not know are passed on as the list `more`; without it they are refused."""

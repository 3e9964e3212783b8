"""What a subcommand of `laneway` is. Packages offer tuples of these under the entry-point group `laneway.commands`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable

from msgspec import Struct


class Command(Struct, frozen=True):
    """One subcommand: `laneway <name>`."""

    name: str
    help: str
    """One line, shown in the list of commands."""
    configure: Callable[[ArgumentParser], None]
    """Adds the command's own arguments."""
    run: Callable[[Namespace], int]
    """Does the work and returns the exit code: 0 done, 1 failed, 2 wrong usage. May raise `LanewayError`, which
    `laneway` prints in one line; a `UsageError` among them ends with 2."""
    takes_more: bool = False
    """Words that `configure` does not know, such as `--engine.max-num-seqs 256`, are handed to `run` as the list
    `more` of the namespace. Otherwise they are refused."""

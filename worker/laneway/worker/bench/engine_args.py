"""The engine of a comparison: `--model`, `--engine` and `--engine-arg`, alike in every one that starts its own."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from laneway.worker.errors import SettingsError
from laneway.worker.settings import WorkerSettings, load_settings


def configure(parser: ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--model", default="demo", metavar="NAME", help="demo, a folder or a Hugging Face id")
    parser.add_argument("--engine", choices=("vllm", "fake"), default="vllm", help="fake: to try the command")
    parser.add_argument(
        "--engine-arg",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="passed to the engine, such as load_format=dummy",
    )


def settings_of(args: Namespace, more: Sequence[str] = ()) -> WorkerSettings:
    """Settings of a worker with that engine, and with `more` words of its command line.

    Raises:
        SettingsError: a pair is not one, or the engine refuses it.
    """
    words = ["--model", args.model, "--engine", args.engine, *more]
    for pair in args.engine_arg:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise SettingsError(f"--engine-arg: expected NAME=VALUE, got {pair}")
        words.append(f"--engine.{name}={value}")
    return load_settings(words, environ={})

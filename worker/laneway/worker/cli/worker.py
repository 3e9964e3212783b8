"""`laneway worker`: run one worker in the foreground."""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser, Namespace

from laneway.schemas.command import Command
from laneway.worker.settings import TABLES, WorkerSettings, option_docs


def configure(parser: ArgumentParser) -> None:
    """One option per setting, and those of the engine as they come."""
    parser.add_argument("--config", metavar="FILE", default=SUPPRESS, help="TOML file with these options")
    docs = option_docs()
    for name in WorkerSettings.__struct_fields__:
        if name not in TABLES.values() or name in TABLES:
            text = docs[name].replace("%", "%%")
            parser.add_argument(f"--{name.replace('_', '-')}", metavar="VALUE", default=SUPPRESS, help=text)
    parser.epilog = "Options of the engine: --engine.max-num-seqs 256. Every option is also LANEWAY_<NAME>."


def run(args: Namespace) -> int:
    """Run until a signal ends it; exit codes are listed in worker/README.md."""
    from laneway.worker.app import main
    from laneway.worker.watchdog import EXIT_S, exit_within

    options = {
        name: value
        for name, value in vars(args).items()
        if name in {"config", *WorkerSettings.__struct_fields__}
    }
    argv = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    code = main([*argv, *getattr(args, "more", ())])
    exit_within(EXIT_S, code)
    return code


COMMAND = Command("worker", "claim jobs and run them on an engine", configure, run, takes_more=True)

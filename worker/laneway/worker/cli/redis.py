"""`laneway redis`: run the embedded server in the foreground."""

from __future__ import annotations

import json
import os
import signal
from argparse import ArgumentParser, Namespace
from pathlib import Path
from types import FrameType

from laneway.schemas.command import Command
from laneway.worker.embedded import MAXMEMORY, EmbeddedServer


def configure(parser: ArgumentParser) -> None:
    """Arguments of `laneway redis`."""
    parser.add_argument("--port", type=int, default=6379, help="port on 127.0.0.1; 0 takes a free one (6379)")
    parser.add_argument("--dir", type=Path, default=None, help=f"where the data lives ({default_folder()})")
    parser.add_argument("--maxmemory", default=MAXMEMORY, help=f"most memory, 0 for no limit ({MAXMEMORY})")
    parser.add_argument("--json", action="store_true", help="print one line of JSON when it is up")


def run(args: Namespace) -> int:
    """Serve until SIGINT or SIGTERM; the data stays in its folder."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with EmbeddedServer(args.dir or default_folder(), args.port, args.maxmemory) as server:
            _tell(server, as_json=args.json)
            return 0 if server.wait() == 0 else 1
    except KeyboardInterrupt:
        return 0


def _tell(server: EmbeddedServer, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"url": server.url, "dir": str(server.folder), "pid": server.pid}), flush=True)
    else:
        print(f"LANEWAY_REDIS_URL={server.url}", flush=True)
        print(f"data in {server.folder}; Ctrl-C ends it", flush=True)


def default_folder() -> Path:
    """`$XDG_DATA_HOME/laneway/redis`, by default under `~/.local/share`."""
    base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(base).expanduser() / "laneway" / "redis"


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


COMMAND = Command("redis", "run the embedded server in the foreground", configure, run)

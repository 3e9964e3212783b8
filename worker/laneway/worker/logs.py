"""Facts as log lines: JSON for machines, coloured text for people. The only place that configures logging."""

from __future__ import annotations

import logging
import re
import sys
import traceback
from collections.abc import Callable, MutableMapping
from typing import Any, TextIO

import structlog

from laneway.worker.telemetry import Fact, Listener

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_EVENT_LEVELS = {
    "job.claimed": "debug",
    "job.started": "debug",
    "job.first_token": "debug",
    "job.fenced": "warning",
    "job.retried": "warning",
    "job.dead_lettered": "error",
    "job.lost": "warning",
    "queue.unavailable": "warning",
    "warmup.skipped": "warning",
    "engine.died": "error",
    "worker.failed": "error",
}
"""Level of each event; `info` where none is given."""
_CREDENTIALS = re.compile(r"(?<=://)[^\s/@]*@")
_Event = MutableMapping[str, Any]


def configure(form: str, level: str, stream: TextIO | None = None) -> Any:
    """Set up logging for the process and return the worker's logger.

    Args:
        form: `json`, `console`, or `auto`: console where `stream` is a terminal.
        stream: where lines go; standard error by default.
    """
    stream = stream or sys.stderr
    console = form == "console" or (form == "auto" and stream.isatty())
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _hide_credentials,
            structlog.dev.ConsoleRenderer(colors=stream.isatty())
            if console
            else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=False,
    )
    return structlog.get_logger()


def listener(logger: Any, worker: str) -> Listener:
    """Writes each fact as one line: its name, and those of its fields that say something."""
    bound = logger.bind(worker=worker)

    def write(fact: Fact) -> None:
        fields = {name: getattr(fact, name) for name in ("job_id", "slo", "bucket", "lora", "outcome")}
        seconds = {"seconds": round(fact.seconds, 4)} if fact.seconds else {}
        said = {name: value for name, value in fields.items() if value}
        getattr(bound, _EVENT_LEVELS.get(fact.event, "info"))(fact.event, **said, **seconds, **fact.data)

    return write


def exception_writer(logger: Any) -> Callable[[object, dict[str, Any]], None]:
    """What the event loop does with an exception that nobody caught: where it came from, never what it said.

    The text of an exception may hold anything, a prompt included.
    """

    def write(loop: object, context: dict[str, Any]) -> None:
        error = context.get("exception")
        logger.error("loop.exception", **(defect(error) if isinstance(error, BaseException) else {}))

    return write


def defect(error: BaseException) -> dict[str, Any]:
    """The type of an unexpected exception and the lines that it passed, without its text."""
    frames = traceback.extract_tb(error.__traceback__)[-6:]
    where = [f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in frames]
    return {"error": type(error).__name__, "where": where}


def _hide_credentials(logger: Any, method: str, event: _Event) -> _Event:
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = _CREDENTIALS.sub("***@", value)
    return event

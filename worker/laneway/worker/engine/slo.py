"""Whether the second level of scheduling runs in this engine, and how it gets there."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from laneway.worker.engine.slo_page import VARIABLE, Controls, Page

VERSIONS = ("0.26", "0.32")
"""Minor versions of vLLM whose scheduler it was read and run against."""
MODULE = "laneway.worker.engine.slo_scheduler"

_log = logging.getLogger("laneway.worker.engine")


def scheduler_class(version: str, *, asynchronous: bool) -> str | None:
    """The name of the scheduler that this vLLM is given; None: its own, which a log line tells."""
    if version.rpartition(".")[0] not in VERSIONS:
        _log.warning(
            "second level of scheduling is off: expected vLLM %s, got %s; the engine's own scheduling is used",
            " or ".join(VERSIONS),
            version,
        )
        return None
    return f"{MODULE}.{'AsyncSLOScheduler' if asynchronous else 'SLOScheduler'}"


@contextmanager
def offering(page: Page | None) -> Iterator[None]:
    """Processes that are started inside find the page."""
    if page is None:
        yield
        return
    os.environ[VARIABLE] = str(page.path)
    try:
        yield
    finally:
        os.environ.pop(VARIABLE, None)


def first_controls(tpot_ms: int) -> Controls:
    """What the second level starts with. 0: its own target."""
    return Controls(tpot_s=tpot_ms / 1000) if tpot_ms else Controls()


def check(page: Page | None) -> None:
    """Say so when the engine is up and the second level is not in charge."""
    if page is not None and page.reported().alive < 0:
        _log.warning(
            "second level of scheduling is off: it does not fit this engine; the engine's own scheduling is used"
        )

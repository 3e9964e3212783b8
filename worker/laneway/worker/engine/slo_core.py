"""Taking in new jobs until the running step is nearly over, in an engine that schedules one step ahead.

vLLM puts the next step together as soon as the running one begins: a job that comes a moment later waits for both. It
is enough to do so shortly before the running step ends. The engine's loop is the only place that can take jobs in.
"""

from __future__ import annotations

import queue
from typing import Any

from vllm.v1.engine.core import EngineCore

LOOK_S = 0.002
"""How often the running step is looked at: it may end earlier than predicted."""


def wait_late(core: Any) -> None:
    """Take in what comes until the next step has to be put together."""
    level = getattr(core.scheduler, "second_level", None)
    arrivals = getattr(core, "input_queue", None)
    if level is None or arrivals is None or not core.batch_queue:
        return
    running = core.batch_queue[-1][0]
    while (seconds := level.late()) > 0 and not running.done():
        try:
            arrival = arrivals.get(timeout=min(seconds, LOOK_S))
        except queue.Empty:
            continue
        core._handle_client_request(*arrival)


def install() -> None:
    """Wrap the engine's step, once."""
    original = EngineCore.step_with_batch_queue
    if getattr(original, "laneway", False):
        return

    def step_with_batch_queue(core: Any) -> Any:
        wait_late(core)
        return original(core)

    step_with_batch_queue.laneway = True  # type: ignore[attr-defined]
    EngineCore.step_with_batch_queue = step_with_batch_queue

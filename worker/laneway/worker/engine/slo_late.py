"""Taking in new jobs until the running step is nearly over, in an engine that schedules one step ahead.

vLLM puts the next step together as soon as the running one begins: a job that comes a moment later waits for both. It
is enough to do so shortly before the running step ends. How shortly is found by trying: `policy.steps.next_lead`. The
engine's loop is the only place that can take jobs in, so the waiting is done there.
"""

from __future__ import annotations

import queue
from typing import Any

from vllm.v1.engine.core import EngineCore

from laneway.worker.engine.slo_steps import SecondLevel

LOOK_S = 0.001
"""How often the running step is looked at: it may end earlier than predicted."""


class Latecomers:
    """Lets jobs into one engine core while its running step lasts."""

    def __init__(self, core: Any, level: SecondLevel) -> None:
        self._core = core
        self._level = level
        self._waited = False
        execute = core.model_executor.execute_model

        def execute_model(*args: Any, **kwargs: Any) -> Any:
            launched = execute(*args, **kwargs)
            self._judge()
            return launched

        core.model_executor.execute_model = execute_model

    def take_in(self) -> None:
        """Until the next step has to be put together."""
        self._waited = False
        if not self._core.batch_queue:
            return
        running = self._core.batch_queue[-1][0]
        while (seconds := self._level.spare_s()) > 0 and not over(running):
            self._waited = True
            try:
                arrival = self._core.input_queue.get(timeout=min(seconds, LOOK_S))
            except queue.Empty:
                continue
            self._core._handle_client_request(*arrival)  # noqa: SLF001 - what the core's own loop does with it
        if self._waited and over(running):
            self._level.see_end()

    def _judge(self) -> None:
        """The next step is with the device: had that run dry?"""
        if self._core.batch_queue:
            dry = over(self._core.batch_queue[-1][0])
            if self._waited or not dry:
                self._level.judge(dry=dry)


def over(running: Any) -> bool:
    """Whether the device is through with a step. The future of an asynchronous step tells only when it is asked for
    its result; the event behind it knows."""
    if running.done():
        return True
    event = getattr(getattr(running, "async_output", None), "async_copy_ready_event", None)
    return event is None or bool(event.query())


def install() -> None:
    """Wrap the engine's step, once."""
    original = EngineCore.step_with_batch_queue
    if getattr(original, "laneway", False):
        return

    def step_with_batch_queue(core: Any) -> Any:
        latecomers = core.__dict__.get("laneway")
        if latecomers is None and isinstance(
            level := getattr(core.scheduler, "second_level", None), SecondLevel
        ):
            latecomers = core.__dict__["laneway"] = Latecomers(core, level)
        if latecomers is not None:
            latecomers.take_in()
        return original(core)

    step_with_batch_queue.laneway = True  # type: ignore[attr-defined]
    EngineCore.step_with_batch_queue = step_with_batch_queue

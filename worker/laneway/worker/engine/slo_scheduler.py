"""vLLM's schedulers with the second level around each step. vLLM imports this in the engine process by name."""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from laneway.worker.engine.slo_late import install
from laneway.worker.engine.slo_page import Page
from laneway.worker.engine.slo_steps import SecondLevel


class _Slo:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.second_level = SecondLevel(self, Page.offered())

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """One step."""
        with self.second_level.around():
            output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        self.second_level.scheduled(output)
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Its results."""
        self.second_level.finished(scheduler_output)
        return super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]


class SLOScheduler(_Slo, Scheduler):  # type: ignore[misc]
    """For an engine that waits for each step."""


class AsyncSLOScheduler(_Slo, AsyncScheduler):  # type: ignore[misc]
    """For an engine that schedules one step ahead."""


install()

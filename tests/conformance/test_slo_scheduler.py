"""The second level on vLLM's own scheduler, with a formula for a model: a thousand steps take a second."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tests.support.bare_scheduler import BLOCK, Formula, make_scheduler

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

pytest.importorskip("vllm")


@pytest.fixture(params=["sync", "async"])
def ahead(request: pytest.FixtureRequest) -> bool:
    """Whether the engine schedules one step ahead."""
    return bool(request.param == "async")


def make(folder: Path, ahead: bool, *, slo: bool, blocks: int = 400, pause: float = 2, **limits: int) -> Formula:
    """A scheduler, stock or with the second level, that pauses for every latency prompt."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    from laneway.worker.engine.slo_page import Controls
    from laneway.worker.engine.slo_scheduler import AsyncSLOScheduler, SLOScheduler
    from laneway.worker.policy.cost import H200_7B

    if not slo:
        return Formula(make_scheduler(AsyncScheduler if ahead else Scheduler, folder, blocks=blocks, **limits), ahead)
    cls = AsyncSLOScheduler if ahead else SLOScheduler
    made = Formula(make_scheduler(cls, folder, blocks=blocks, **limits), ahead)
    level = made.scheduler.second_level
    assert level.reason is None
    level._model = H200_7B
    level._controls = Controls(pause=pause)
    return made


def mix(formula: Formula, seed: int, *, throughput: int = 24, latency: int = 8) -> Any:
    """Throughput jobs at once, latency jobs as the steps go by; all run to their end."""
    r = random.Random(seed)
    for i in range(throughput):
        prompt = [r.randrange(1000) for _ in range(r.randint(20, 400))]
        formula.add(f"t{i}", prompt, r.randint(5, 40), 1, float(i))
    for i in range(latency):
        for _ in range(r.randint(0, 6)):
            formula.step()
        prompt = [r.randrange(1000) for _ in range(r.randint(5, 300))]
        formula.add(f"l{i}", prompt, r.randint(5, 20), 0, 100.0 + i)
    formula.finish()
    return formula.answers


@pytest.mark.parametrize("blocks", [400, 60], ids=["ample", "scarce"])
def test_every_job_gets_the_tokens_of_the_stock_scheduler(tmp_path: Path, ahead: bool, blocks: int) -> None:
    """Paused, capped, put first or preempted for want of KV: each job's tokens stay the same, in order."""
    for seed in range(8):
        stock = mix(make(tmp_path, ahead, slo=False, blocks=blocks), seed)
        ours = make(tmp_path, ahead, slo=True, blocks=blocks)
        assert mix(ours, seed) == stock
        level = ours.scheduler.second_level
        assert level.reason is None
        assert level._counts["paused"] > 0

"""The second level on vLLM's own scheduler, with a formula for a model: a thousand steps take a second."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tests.support.bare_scheduler import Formula, make_scheduler

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings(
        "ignore:.*torch.jit.script_method:DeprecationWarning"
    ),  # torch's own, on import
]

pytest.importorskip("vllm")


@pytest.fixture(params=["sync", "async"])
def ahead(request: pytest.FixtureRequest) -> bool:
    """Whether the engine schedules one step ahead."""
    return bool(request.param == "async")


def make(folder: Path, ahead: bool, *, slo: bool, blocks: int = 400, **limits: int) -> Formula:
    """A scheduler, stock or with the second level, that knows how long its steps take."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    from laneway.worker.engine.slo_scheduler import AsyncSLOScheduler, SLOScheduler
    from laneway.worker.policy.cost import H200_7B

    if not slo:
        return Formula(
            make_scheduler(AsyncScheduler if ahead else Scheduler, folder, blocks=blocks, **limits), ahead
        )
    cls = AsyncSLOScheduler if ahead else SLOScheduler
    made = Formula(make_scheduler(cls, folder, blocks=blocks, **limits), ahead)
    level = made.scheduler.second_level
    assert level.reason is None
    level._model = H200_7B
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
    paused = 0
    for seed in range(8):
        stock = mix(make(tmp_path, ahead, slo=False, blocks=blocks), seed)
        ours = make(tmp_path, ahead, slo=True, blocks=blocks)
        assert mix(ours, seed) == stock
        assert ours.scheduler.second_level.reason is None
        paused += ours.scheduler.second_level._counts["paused"]
    assert paused > 0


def test_a_latency_prompt_is_computed_beside_prompts_that_were_there_before(
    tmp_path: Path, ahead: bool
) -> None:
    """Stock: two long prompts under way take all tokens of the next steps. Here: the late one is through in two."""
    shares = {}
    for slo in (False, True):
        made = make(tmp_path, ahead, slo=slo)
        for i in range(2):
            made.add(f"t{i}", list(range(900)), 4, 1, 0.0)
        made.step()
        made.add("l", list(range(60)), 4, 0, 0.0)
        made.step()
        shares[slo] = made.shares[-1].get("l", 0)
        made.finish()
    assert shares == {False: 0, True: 60}


def test_when_it_fails_the_stock_scheduler_goes_on(
    tmp_path: Path, ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of ours costs nobody anything: no job is lost, seats and budget are as they were."""
    made = make(tmp_path, ahead, slo=True)
    level = made.scheduler.second_level
    seats, tokens = made.scheduler.max_num_running_reqs, made.scheduler.max_num_scheduled_tokens
    calls = 0

    def broken(*_: Any, **__: Any) -> None:
        nonlocal calls
        calls += 1
        raise ValueError("not today")

    monkeypatch.setattr(level, "_decide", broken)
    assert mix(made, 3) == mix(make(tmp_path, ahead, slo=False), 3)
    assert calls == 1
    assert level.reason == "ValueError in the second level"
    assert (made.scheduler.max_num_running_reqs, made.scheduler.max_num_scheduled_tokens) == (seats, tokens)


def test_it_says_what_it_cannot_work_with(tmp_path: Path, ahead: bool) -> None:
    """A scheduler that lacks what is needed, or does what was never tried, keeps its own ways."""
    from laneway.worker.engine.slo_steps import unfit

    scheduler = make(tmp_path, ahead, slo=True).scheduler
    assert unfit(scheduler) is None
    scheduler.num_spec_tokens = 2
    assert unfit(scheduler) == "speculative decoding is not supported"
    scheduler.num_spec_tokens = 0
    del scheduler.running
    assert unfit(scheduler) == "this vLLM's scheduler has no running"

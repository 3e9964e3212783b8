"""The simulator: the same run every time, an engine whose books balance, and what Laneway must show on it."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from random import Random

import msgspec
import pytest

from laneway.schemas.job import SloClass
from laneway.worker.bench.sim import calibrate, command, contenders
from laneway.worker.bench.sim.calibrate import h200
from laneway.worker.bench.sim.contenders import laneway, play
from laneway.worker.bench.sim.decoders import leaves_at
from laneway.worker.bench.sim.engine import Batch, Engine, Limits
from laneway.worker.bench.sim.jobs import SimJob
from laneway.worker.bench.sim.policies import DumpAll
from laneway.worker.bench.sim.report import mean_deviation
from laneway.worker.bench.sim.workloads import WORKLOADS, Mix, make_jobs
from laneway.worker.bench.sim.world import run
from laneway.worker.policy.cost import H200_7B

SMALL = Mix(latency_load=0.3, backlog=True, seconds=15.0)


def job(number: int, **changes: object) -> SimJob:
    """A throughput job of 512 in, 8 out at time 0."""
    fields: dict[str, object] = {
        "id": number,
        "slo": SloClass.THROUGHPUT,
        "arrival": 0.0,
        "prompt": 512,
        "output": 8,
        "max_tokens": 8,
    }
    return SimJob(**(fields | changes))  # type: ignore[arg-type]


def shortened(name: str, seconds: float = 45.0) -> Mix:
    return msgspec.structs.replace(WORKLOADS[name], seconds=seconds)


class AuditedEngine(Engine):
    """Recounts, after each planned step, what the engine keeps as sums."""

    def _plan(self) -> Batch | None:
        batch = super()._plan()
        if batch is not None and len(batch.ticks) == 2:
            held = 0
            for decoders in batch.ticks:
                decoding = [
                    j
                    for j in self.running.values()
                    if self._decoders(j) is decoders and 0 <= j.first_tick < decoders._settled < leaves_at(j)
                ]
                assert decoders.count == len(decoding)
                assert decoders.kv == sum(j.context + decoders._settled - j.first_tick for j in decoding)
            for j in self.running.values():
                held += j.computed + self._decoders(j).planned_decodes(j)
            assert held == self.kv_used <= self.spec.kv_tokens
            assert len(self.running) <= self.spec.seats
            assert len(self.adapters) <= self.spec.max_loras
        return batch


@pytest.mark.parametrize("kv_tokens", [220_000, 60_000], ids=["ample", "scarce"])
@pytest.mark.parametrize("ahead", [True, False], ids=["async", "sync"])
@pytest.mark.parametrize("pausing", [False, True])
def test_the_engine_s_books_balance_at_every_step(kv_tokens: int, ahead: bool, pausing: bool) -> None:
    """Seats, KV, decoding jobs and adapters, with and without preemption, look-ahead and pauses."""
    rng = Random(1)

    def hook(engine: Engine) -> Limits:
        return Limits(2048, latency_first=True, pause=rng.random() < 0.2)

    engine = AuditedEngine(h200(kv_tokens=kv_tokens, ahead=ahead), Random(1), hook if pausing else None)
    jobs = make_jobs(SMALL, H200_7B, 0)
    run(DumpAll([engine]), [engine], jobs, SMALL.seconds)
    assert (engine.preemptions > 0) == (kv_tokens == 60_000)


def test_every_job_gets_all_its_tokens_even_when_preempted() -> None:
    """Preemption recomputes; nothing is lost and nothing is counted twice."""
    engine = Engine(h200(kv_tokens=4000), Random(1))
    jobs = [job(i, output=200) for i in range(12)]
    run(DumpAll([engine]), [engine], jobs, 1e6)
    assert engine.preemptions > 0
    assert all(j.generated == j.output and j.ended > j.first > 0 for j in jobs)
    assert (engine.kv_used, engine.running, engine.decodes) == (0, {}, 0)


def test_a_step_of_the_engine_takes_what_the_model_says() -> None:
    """One prompt of 512 tokens alone: one step to the first token, seven decode steps more."""
    engine = Engine(h200(reply_s=0.0), Random(1))
    only = job(0)
    run(DumpAll([engine]), [engine], [only], 1e6)
    assert only.first == pytest.approx(H200_7B.step_s(512, 0, 0))
    decodes = sum(H200_7B.step_s(0, 1, 512 + i) for i in range(1, 8))
    assert only.ended == pytest.approx(only.first + decodes)


def test_one_seed_is_one_run() -> None:
    """Everything follows from the seed; another seed is another run."""
    assert play(laneway(), SMALL, seed=3) == play(laneway(), SMALL, seed=3) != play(laneway(), SMALL, seed=4)


def test_the_simulator_repeats_what_an_h200_was_measured_to_do() -> None:
    """Eleven experiments, four figures each: 12% off on average at most."""
    rows = [(row, calibrate.flood(row, h200())) for row in calibrate.MEASURED]
    assert mean_deviation(rows) <= 0.12


def test_deadlines_are_met_while_the_load_can_be_carried() -> None:
    """At 95% load: 95% on time, and latency jobs get what they were promised."""
    figures = play(laneway(), shortened("deadlines95"), seed=0)
    assert figures.throughput_attained >= 0.95
    assert figures.latency_attained >= 0.95


def test_overload_does_not_reach_latency_jobs() -> None:
    """At 120% load at least 90% of latency jobs get what they were promised."""
    assert play(laneway(), shortened("deadlines120"), seed=0).latency_attained >= 0.90


def test_tenants_are_served_alike_at_no_cost() -> None:
    """Offered 1:4:16, served alike: Jain 0.95, throughput within 3% of an unfair schedule."""
    fair, unfair = (play(laneway(fair=fair), shortened("tenants"), seed=0) for fair in (True, False))
    assert fair.jain >= 0.95 > unfair.jain
    assert fair.throughput_tokens >= 0.97 * unfair.throughput_tokens


def test_latency_is_better_than_a_semaphore_at_equal_throughput() -> None:
    """Against a semaphore with as much throughput, first tokens and token gaps come sooner."""
    ours = play(laneway(), shortened("mixed"), seed=0)
    rivals = [
        play(rival, shortened("mixed"), seed=0)
        for rival in contenders.semaphores()
        if "2048, threshold 0" in rival.knobs
    ]
    equal = min(
        (r for r in rivals if r.throughput_tokens >= 0.99 * ours.throughput_tokens), key=lambda r: r.ttft_p99
    )
    assert ours.ttft_p99 < 0.8 * equal.ttft_p99
    assert ours.gap_p99 < 0.8 * equal.gap_p99


def test_the_command_ends_with_one_line_of_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`laneway bench sim --json` is for programs."""
    monkeypatch.setitem(WORKLOADS, "mixed", msgspec.structs.replace(SMALL, seconds=4.0))
    parser = ArgumentParser()
    command.configure(parser)
    assert command.run(parser.parse_args(["--seeds", "1", "--json"])) == 0
    result = json.loads(capsys.readouterr().out)
    assert {"fifo", "semaphore", "laneway 1", "laneway 1+2"} <= result["mixed"]["policies"].keys()


def test_no_seeds_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and one sentence."""
    parser = ArgumentParser()
    command.configure(parser)
    assert command.run(parser.parse_args(["--seeds", "0"])) == 2
    assert "expected at least 1, got 0" in capsys.readouterr().err

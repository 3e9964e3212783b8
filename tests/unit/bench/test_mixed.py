"""`laneway bench mixed`: the load is the same for all, the figures are what jobs saw, and every policy keeps its rule."""

import asyncio
import json
from argparse import ArgumentParser, ArgumentTypeError
from itertools import islice
from pathlib import Path

import pytest

from laneway.worker.bench.mixed import command, compare, policies
from laneway.worker.bench.mixed.drive import Load
from laneway.worker.bench.mixed.measure import Record, measure, median_of, percentile
from laneway.worker.bench.mixed.plan import SHAPES, Size, arrivals, backlog, prompt_ids
from laneway.worker.bench.mixed.policies import Batches, Entrant, Gate, Permits
from laneway.worker.engine.create import create_engine
from laneway.worker.engine.slo_page import Controls
from laneway.worker.errors import SettingsError
from laneway.worker.settings import load_settings

SHAPE = SHAPES["small"]


def entrant(prompt: int = 8, *, latency: bool = False) -> Entrant:
    """A job of which a gate sees class and length only."""
    return Entrant(None, latency, Size(prompt, 4), 0.0)  # type: ignore[arg-type]


# --- the load -------------------------------------------------------------------


def test_every_policy_of_a_seed_meets_the_same_load() -> None:
    """Arrivals and lengths follow from the seed alone; another seed draws others."""
    assert arrivals(SHAPE, 1, 5, 60) == arrivals(SHAPE, 1, 5, 60) != arrivals(SHAPE, 2, 5, 60)
    assert list(islice(backlog(SHAPE, 1), 50)) == list(islice(backlog(SHAPE, 1), 50))


def test_latency_jobs_come_at_their_rate_whatever_happens() -> None:
    """Poisson over ramp and run, in order, with lengths of the shape."""
    found = arrivals(SHAPE, 3, 100, 900)
    times = [arrival.at for arrival in found]
    assert times == sorted(times)
    assert -100 <= times[0] < 0 < times[-1] < 900
    assert 900 < len(found) < 1100
    assert {arrival.size.prompt for arrival in found} == set(SHAPE.latency_prompts)


def test_prompts_are_fresh() -> None:
    """No two runs or jobs share a beginning that a prefix cache could serve."""
    prompts = {prompt_ids(run, number, 32, 1000)[:8] for run in ("a", "b") for number in range(50)}
    assert len(prompts) == 100


# --- the figures ----------------------------------------------------------------


def test_a_job_is_measured_from_the_moment_it_was_due() -> None:
    """First token, time per token and widest gap of one job, and its share of the output."""
    job = Record(latency=True, due=1.0, tokens=[(1.2, 1), (1.3, 1), (1.7, 2)], ended=1.7)
    figures = measure([job], SHAPE, 60).latency
    assert (figures.ttft_ms.p50, figures.tpot_ms.p50, figures.gap_max_ms) == (200.0, 166.7, 400.0)
    assert figures.goodput == 1.0
    assert (figures.tokens_s, figures.jobs_s) == (round(4 / 60, 2), round(1 / 60, 3))


def test_a_job_without_a_token_counts_with_the_time_it_waited() -> None:
    """It is not left out: else the worst policy would look best."""
    figures = measure([Record(latency=True, due=10.0)], SHAPE, 60).latency
    assert (figures.unanswered, figures.ttft_ms.p95, figures.goodput) == (1, 50_000.0, 0.0)


def test_the_ramp_and_the_last_moments_are_not_judged() -> None:
    """Jobs from before the beginning, and those that came too late for a first token in time."""
    records = [Record(latency=True, due=-1.0), Record(latency=True, due=59.9)]
    assert measure(records, SHAPE, 60).latency.jobs == 0


def test_percentiles_are_values_that_occurred() -> None:
    """Nearest rank, and nothing of nothing."""
    assert [percentile(range(100), p) for p in (50, 95, 99)] == [50, 95, 99]
    assert percentile([], 95) is None


def test_medians_are_taken_figure_by_figure() -> None:
    """One bad seed does not decide, and a seed without a value is no zero."""
    runs = [
        measure([Record(latency=True, due=0.0, tokens=[(at, 1)], ended=at)], SHAPE, 60)
        for at in (0.1, 0.2, 9.0)
    ]
    assert median_of([*runs, measure([], SHAPE, 60)]).latency.ttft_ms.p95 == 200.0


def test_the_tuned_setting_is_the_fastest_that_keeps_the_throughput() -> None:
    """A setting that gives up more than 5% of the best throughput does not win by speed."""

    def probe(ttft: float, tokens: int) -> compare.Probe:
        records = [
            Record(latency=True, due=0.0, tokens=[(ttft, 1)], ended=ttft),
            Record(latency=False, due=0.0, tokens=[(1.0, tokens)]),
        ]
        return compare.Probe(policy="semaphore", knobs="", figures=measure(records, SHAPE, 60))

    assert compare.tuned([probe(0.1, 9000), probe(0.3, 9800), probe(0.4, 10_000)]) == 1


# --- the policies ---------------------------------------------------------------


async def enter(
    gate: Gate, jobs: list[Entrant]
) -> tuple[list[int], list[asyncio.Event], list[asyncio.Task[None]]]:
    """Send jobs to a gate; those inside stay until their event is set."""
    inside: list[int] = []
    events = [asyncio.Event() for _ in jobs]

    async def run(number: int) -> None:
        async with gate.turn(jobs[number]):
            inside.append(number)
            await events[number].wait()

    waiting = [asyncio.create_task(run(number)) for number in range(len(jobs))]
    await asyncio.sleep(0.01)
    return inside, events, waiting


async def test_permits_hold_back_throughput_jobs_only() -> None:
    """Latency jobs go straight in, however many are inside."""
    inside, events, tasks = await enter(Permits(1), [entrant(), entrant(), entrant(latency=True)])
    assert inside == [0, 2]
    for event in events:
        event.set()
    await asyncio.gather(*tasks)
    assert inside == [0, 2, 1]


async def test_a_static_batch_waits_for_its_last_job() -> None:
    """The next batch begins only when the engine is empty, and only full."""
    inside, events, tasks = await enter(Batches(2), [entrant() for _ in range(5)])
    assert set(inside) == {0, 1}
    events[0].set()
    await asyncio.sleep(0.01)
    assert set(inside) == {0, 1}
    for event in events:
        event.set()
    await asyncio.gather(*tasks[:4])
    assert set(inside) == {0, 1, 2, 3}
    tasks[4].cancel()


async def test_a_grouped_batch_takes_the_nearest_lengths_and_the_oldest_job() -> None:
    """The job that waits longest is always in it: no length starves."""
    gate = Batches(2, by_length=True)
    inside, events, tasks = await enter(gate, [entrant(n) for n in (9, 9, 100, 10, 98)])
    events[0].set()
    events[1].set()
    await asyncio.gather(*tasks[:2])
    await asyncio.sleep(0.01)
    assert set(inside) == {0, 1, 2, 4}
    for task in tasks[2:]:
        task.cancel()


# --- the command ----------------------------------------------------------------


def ask(*words: str) -> int:
    """Run the command on the fake engine, quickly."""
    parser = ArgumentParser()
    command.configure(parser)
    fast = ["base_s=0.001", "seats=4", "context_tokens=512"]
    given = [word for pair in fast for word in ("--engine-arg", pair)]
    times = ["--seconds", "0.8", "--ramp", "0.1", "--probe", "0.2", "--rate", "40"]
    return command.run(parser.parse_args(["--model", "m", "--engine", "fake", *given, *times, *words]))


def test_the_last_line_holds_every_policy_and_the_ratios(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Per policy the medians and every seed, the probes of the tuning, and ours over tuned priority."""
    assert ask("--seeds", "2", "--json", "--out", str(tmp_path)) == 0
    out, err = capsys.readouterr()
    told = json.loads(out.splitlines()[-1])
    names = [name for name in compare.POLICIES if name not in compare.LEVEL2]
    assert list(told["policies"]) == names
    for figures in told["policies"].values():
        assert list(figures["seeds"]) in (["1", "2"], ["2", "1"])
        assert figures["throughput"]["tokens_s"] > 0
    assert told["policies"]["priority"]["latency"]["ttft_ms"]["p95"] > 0
    assert told["ratios_vs_priority"] == told["ratios"]["level1"]
    assert all(ratio > 0 for ratio in told["ratios_vs_priority"].values())
    assert {probe["policy"] for probe in told["probes"]} == {"priority", "semaphore"}
    assert json.loads((tmp_path / "mixed.json").read_text()) == told
    order = [line.split()[3] for line in err.splitlines() if line.startswith("run, ")]
    assert order == [*names, *reversed(names)]


def test_a_wrong_option_is_told_in_a_sentence() -> None:
    """What the engine is given must have a name and a value, and two batches must fit into the backlog."""
    with pytest.raises(SettingsError, match="NAME=VALUE"):
        ask("--engine-arg", "seats")
    with pytest.raises(SettingsError, match="--backlog: expected at least 8"):
        ask("--backlog", "3")


def test_jobs_get_the_same_tokens_in_a_crowd_as_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Counted for each way of planning steps, beside how many answers differ at all; targets are what was asked for."""
    assert ask("--identity", "--policies", "priority", "--ttft", "70", "--tpot", "30", "--json") == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    same = told["about"]["identity"]
    assert (same["jobs"], same["different"], set(same["equal"].values())) == (32, 32, {32})
    assert (told["load"]["shape"]["ttft_ms"], told["load"]["shape"]["tpot_ms"]) == (70, 30)


def test_a_variant_is_a_row_of_its_own() -> None:
    """Both levels with one thing changed; what is no control of the scheduler is refused."""
    assert command._variant("lean=2,floor=64") == ("lean=2,floor=64", {"lean": 2.0, "floor": 64.0})
    for wrong, reason in (
        ("lena=2", "expected some of .*, got lena"),
        ("lean=a", "lean: expected a number, got 'a'"),
    ):
        with pytest.raises(ArgumentTypeError, match=reason):
            command._variant(wrong)
    for controls in compare.ABLATIONS.values():
        assert Controls(**controls) != Controls(), controls


async def test_every_ablation_and_variant_is_played() -> None:
    """Beside the whole, in turns, on every seed."""
    engine = create_engine(
        load_settings(["--engine", "fake", "--engine.seats", "4", "--engine.base-s", "0.001"], {})
    )
    await engine.start(lambda phase, share: None)
    load = Load(shape=SHAPE, seed=1, backlog=8, ramp_s=0.0, seconds=0.1)
    more = {"late=0,lean=2": {"late": 0.0, "lean": 2.0}}
    found = await compare.compare(engine, load, (1, 2), ["level1+2", "ablations"], more, 0.1, lambda _: None)
    await engine.stop()
    assert list(found.runs) == ["level1+2", *compare.ABLATIONS, *more]
    assert all(set(seeds) == {1, 2} for seeds in found.runs.values())
    assert found.knobs["late=0,lean=2"] == "both levels, late=0, lean=2"


def test_static_batches_are_as_large_as_the_engine() -> None:
    """A batch smaller than the engine would lose by its size, not by its idea."""
    assert policies.static(7).knobs == "batches of 7"

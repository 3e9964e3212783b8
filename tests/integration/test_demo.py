"""`laneway demo`: from nothing to nothing, whatever happens in between."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from laneway.schemas.ids import JobId, WorkerId
from laneway.schemas.outcome import Completed, Expired, Failed, JobError, Outcome, Result, Timeline, Usage
from laneway.worker.cli import demo_report
from laneway.worker.cli.demo_report import Ended
from laneway.worker.cli.demo_worker import WorkerFailed, WorkerProcess

DEMO = [str(Path(sys.executable).with_name("laneway")), "demo", "--engine", "fake"]


def processes(marker: str) -> list[int]:
    """Living processes that carry `marker` in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal() or int(folder.name) == os.getpid():
            continue
        try:
            if marker.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def settle_down(marker: str) -> None:
    """Wait until no process carries `marker`."""
    give_up = time.monotonic() + 15
    while processes(marker):
        assert time.monotonic() < give_up, f"left over: {processes(marker)}"
        time.sleep(0.02)


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment without Laneway's variables, marked so that its processes are found; its TMPDIR is this test's."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("LANEWAY_")}
    yield {**plain, "TMPDIR": str(tmp_path), "DEMO_MARK": tmp_path.name}
    settle_down(f"DEMO_MARK={tmp_path.name}")


def test_it_leaves_nothing_behind(environment: dict[str, str], tmp_path: Path) -> None:
    """Own server, own worker, 24 completed jobs, tables, exit code 0; then no process and no file."""
    done = subprocess.run(DEMO, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "> Why is the sky blue?" in done.stdout
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["latency", "8"] in [row[:2] for row in rows]
    assert ["throughput", "16"] in [row[:2] for row in rows]
    assert [row[0] for row in rows if row and row[0] in {"base", "demo-a", "demo-b"}] == [
        "base",
        "demo-a",
        "demo-b",
    ]
    assert list(tmp_path.iterdir()) == []


def test_it_uses_a_given_server_and_leaves_no_key(environment: dict[str, str], each_redis_url: str) -> None:
    """With LANEWAY_REDIS_URL no server is started, and that one is left as it was."""
    with redis.Redis.from_url(each_redis_url) as client:
        before = set(client.scan_iter(match="*demo-*"))
        done = subprocess.run(
            [*DEMO, "--json"],
            env={**environment, "LANEWAY_REDIS_URL": each_redis_url},
            capture_output=True,
            text=True,
            check=False,
        )
        assert set(client.scan_iter(match="*demo-*")) == before
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [(row["name"], row["jobs"], row["outcomes"]) for row in report["classes"]] == [
        ("latency", 8, {"completed": 8}),
        ("throughput", 16, {"completed": 16}),
    ]
    assert report["failures"] == []


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_cleans_up(
    environment: dict[str, str], tmp_path: Path, signum: signal.Signals
) -> None:
    """Ctrl-C and SIGTERM end server and worker in order."""
    with subprocess.Popen(
        DEMO,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_DFL
        ),  # ignored by what a shell runs with `&`
    ) as demo:
        assert demo.stdout is not None
        while "starting a worker" not in (line := demo.stdout.readline()):
            assert line, "it ended before a worker was started"
        demo.send_signal(signum)
        _, errors = demo.communicate(timeout=30)
    assert demo.returncode == 130, errors
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []


def test_a_killed_demo_takes_everything_with_it(environment: dict[str, str]) -> None:
    """SIGKILL cannot be handled; server and worker still end (the fixture waits for it)."""
    with subprocess.Popen(DEMO, env=environment, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        while "ready" not in (line := demo.stdout.readline()):
            assert line, "it ended before a worker was ready"
        demo.kill()


def test_an_unreachable_server_is_told_in_one_line(environment: dict[str, str]) -> None:
    """No traceback, no worker, exit code 1."""
    done = subprocess.run(
        [*DEMO, "--redis-url", "redis://:secret@127.0.0.1:1/0"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr
    assert "secret" not in done.stdout + done.stderr


async def test_a_worker_that_cannot_start_tells_why(tmp_path: Path) -> None:
    """Its own reason is passed on, not just its exit code."""
    worker = WorkerProcess(["--engine=fake", "--engine.bogus=1"], tmp_path / "log", lambda text: None)
    try:
        with pytest.raises(WorkerFailed, match=r"engine\.bogus"):
            await worker.start(30)
    finally:
        await worker.stop()


def ended(slo: str, outcome: Outcome, submitted: int, first: int, end: int) -> Ended:
    """A job of the report."""
    line = Timeline(submitted_ms=submitted, first_token_ms=first, ended_ms=end)
    return Ended(slo, "base", Result(job_id=JobId("j"), outcome=outcome, timeline=line, worker=WorkerId("w")))


def test_a_group_is_measured_from_its_first_acceptance_to_its_last_end() -> None:
    """Tokens per second are those of the whole group, not a mean of single jobs."""
    done = Completed(choices=(), usage=Usage(output_tokens=50))
    jobs = [ended("latency", done, 1000, 1100, 2000), ended("latency", done, 1000, 1300, 3000)]
    row = demo_report.group("latency", jobs)
    assert row.tokens_per_s == 50.0
    assert (row.ttft_p50_ms, row.ttft_p95_ms) == (100.0, 300.0)
    assert row.outcomes == {"completed": 2}


def test_jobs_without_a_token_count_but_have_no_ttft() -> None:
    """A job that never began has no time to first token; it still has an outcome and a reason."""
    error = Failed(error=JobError(code="x", message="no such adapter"))
    jobs = [ended("latency", error, 1000, 0, 1000), ended("latency", Expired(), 1000, 0, 1000)]
    row = demo_report.group("latency", jobs)
    assert row.ttft_p50_ms is None
    assert row.tokens_per_s == 0.0
    assert demo_report.failures(jobs) == ["j (latency) failed: no such adapter", "j (latency) expired"]
    assert "1 expired, 1 failed" in demo_report.render("class", [row])


def test_percentiles_are_values_that_occurred() -> None:
    """The smallest value that at least the given share do not exceed."""
    assert demo_report.percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert demo_report.percentile([float(value) for value in range(1, 101)], 0.95) == 95.0
    assert demo_report.percentile([], 0.5) is None

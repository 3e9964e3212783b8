"""What becomes of jobs when worker processes are killed, frozen, drained or broken. Real processes, real signals."""

from __future__ import annotations

import asyncio
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import StartServer
from tests.support.asking import assert_completed, results, settled, submit
from tests.support.worker_process import MakeWorker, WorkerProcess

from laneway.producer.client import Producer
from laneway.schemas.outcome import Completed, Failed
from laneway.schemas.state import JobState

pytestmark = [pytest.mark.redis, pytest.mark.timeout(90)]

# --- kill, freeze -------------------------------------------------------------


@pytest.mark.case("A1")
async def test_after_a_kill_another_worker_finishes_every_job_once(
    worker: MakeWorker, producer: Producer
) -> None:
    """`kill -9` with 20 of 64 jobs in hand: each gets exactly one outcome, from the second worker."""
    async with worker("a", **{"engine.seats": 20, "latency_share": 0.0}) as first:
        await first.ready()
        jobs = await submit(producer, 64)
        await first.says("job.first_token", times=20)
        first.send(signal.SIGKILL)
        assert await first.exit_code() == -signal.SIGKILL
        async with worker("b") as second:
            await second.ready()
            found = await results(producer, jobs)
            for attempt, count in ((1, 44), (2, 20)):
                of_attempt = [result for result in found if result.attempt == attempt]
                assert_completed(of_attempt, attempt)
                assert len(of_attempt) == count
            assert sorted(settled(second)) == sorted(jobs)
        assert not settled(first)


@pytest.mark.case("A5")
async def test_a_frozen_worker_settles_nothing_that_was_taken_from_it(
    worker: MakeWorker, producer: Producer
) -> None:
    """SIGSTOP past the lease, then SIGCONT: its jobs are another's by then; it drops them and works on."""
    async with worker("a") as first:
        await first.ready()
        jobs = await submit(producer, 5)
        await first.says("job.first_token", times=5)
        first.send(signal.SIGSTOP)
        async with worker("b") as second:
            await second.ready()
            assert_completed(await results(producer, jobs), attempt=2)
            first.send(signal.SIGCONT)
            await first.says("job.lost", times=5)
            await first.shows("laneway_engine_running 0.0", "laneway_seats_taken 0.0")
            second.send(signal.SIGTERM)
            await second.exit_code()
            assert sorted(settled(second)) == sorted(jobs)
        assert not settled(first)
        more = await submit(producer, 3, tokens=2)
        assert_completed(await results(producer, more), attempt=1)
        assert sorted(settled(first)) == sorted(more)


async def test_a_frozen_worker_that_wakes_first_says_nothing_more_about_its_jobs(
    worker: MakeWorker, producer: Producer
) -> None:
    """A stream joins to one attempt: no token of the first comes after the second has begun."""
    async with worker("a") as first:
        await first.ready()
        (job,) = await submit(producer, 1, stream=True)
        await first.says("job.first_token")
        first.send(signal.SIGSTOP)
        async with worker("b") as second:
            await second.says("job.started")
            first.send(signal.SIGCONT)
            attempts = [event.attempt async for event in producer.stream(job)]
            assert attempts == sorted(attempts)
            (result,) = await results(producer, [job])
            assert result.attempt == 2


# --- drain --------------------------------------------------------------------


@pytest.mark.case("F70")
async def test_a_drain_lets_jobs_end_and_takes_no_others(worker: MakeWorker, producer: Producer) -> None:
    """SIGTERM: claiming stops at once, jobs in hand complete, exit code 0."""
    async with worker(drain_s=20) as only:
        await only.ready()
        assert await only.page("/readyz") == (200, '{"phase":"ready"}\n')
        jobs = await submit(producer, 5)
        await only.says("job.first_token", times=5)
        assert "laneway_seats_taken 5.0" in (await only.page("/metrics"))[1]
        only.send(signal.SIGTERM)
        await only.says("phase.changed", phase="draining")
        assert await only.page("/readyz") == (503, '{"phase":"draining"}\n')
        assert (await only.page("/healthz"))[0] == 200
        (late,) = await submit(producer)
        assert await only.exit_code() == 0
        assert_completed(await results(producer, jobs), attempt=1)
        assert sorted(settled(only)) == sorted(jobs)
        assert (await producer.status(late)).state.value == "queued"


@pytest.mark.parametrize("signals", [1, 2])
@pytest.mark.case("A23", "F70")
async def test_what_is_left_after_the_drain_is_handed_back_unharmed(
    worker: MakeWorker, producer: Producer, signals: int
) -> None:
    """Past `drain_s`, or at the second signal: another worker has the jobs at once, and no attempt is counted failed."""
    async with worker("a", drain_s=0.3 if signals == 1 else 60, lease_s=60) as first:
        await first.ready()
        jobs = await submit(producer, 5)
        await first.says("job.first_token", times=5)
        first.send(signal.SIGTERM)
        if signals == 2:
            await first.says("phase.changed", phase="draining")
            first.send(signal.SIGTERM)
        assert await first.exit_code() == 0
        assert len(await first.says("job.handed_back", times=5)) == 5
        async with worker("b") as second:
            await second.says("job.claimed", times=5)
            found = await results(producer, jobs)
            assert all(isinstance(result.outcome, Completed) for result in found)
            for job in jobs:
                record = (await producer.status(job)).record
                assert record is not None
                assert record.failures == 0


@pytest.mark.case("A23")
async def test_restarts_use_up_no_attempts(worker: MakeWorker, producer: Producer) -> None:
    """Five workers in a row are drained in the middle of a job of two attempts: it completes, and none has failed."""
    (job,) = await submit(producer, tokens=150, attempts={"max_attempts": 2})
    for number in range(5):
        async with worker(f"{number}", drain_s=0, lease_s=60) as drained:
            await drained.says("job.started")
            drained.send(signal.SIGTERM)
            assert await drained.exit_code() == 0
            assert not settled(drained)
    async with worker("last") as last:
        assert_completed(await results(producer, [job]), attempt=6)
        assert settled(last) == [job]
    record = (await producer.status(job)).record
    assert record is not None
    assert (record.failures, record.losses) == (0, 0)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    ("phase", "options"), [("starting", {"engine.start_s": 600}), ("warming", {"engine.base_s": 600})]
)
@pytest.mark.case("F70", "F71")
async def test_a_signal_during_the_start_ends_it_cleanly(
    worker: MakeWorker, producer: Producer, phase: str, options: dict[str, Any], signum: signal.Signals
) -> None:
    """While the engine comes up or warms up the worker is alive, not ready, and takes no job; a signal ends it with
    exit code 0, long before it would be up."""
    (job,) = await submit(producer)
    async with worker(**options) as only:
        await only.says("phase.changed", phase=phase)
        assert (await only.page("/healthz"))[0] == 200
        assert await only.page("/readyz") == (503, f'{{"phase":"{phase}"}}\n')
        only.send(signum)
        assert await only.exit_code(5) == 0
        assert not any(line.get("phase") == "ready" for line in only.lines())
    assert (await producer.status(job)).state is JobState.QUEUED


@pytest.mark.case("F73")
async def test_an_engine_that_does_not_come_up_costs_no_job_an_attempt(
    redis_url: str, namespace: str, tmp_path: Path, producer: Producer
) -> None:
    """A model that is not there: exit code 5 and its reason in one line, however often it is tried; ten jobs wait on."""
    jobs = await submit(producer, 10)
    for _ in range(2):
        options = {"engine": "vllm", "model": "/nowhere/model", "served_name": "demo"}
        async with WorkerProcess(redis_url, namespace, tmp_path / "log", **options) as only:
            assert await only.exit_code() == 5
            (line,) = await only.says("worker.failed")
            assert line["reason"].endswith("got /nowhere/model")
    for job in jobs:
        record = (await producer.status(job)).record
        assert record is not None
        assert (record.state, record.attempt) == (JobState.QUEUED, 0)


# --- the engine ---------------------------------------------------------------


async def test_when_the_engine_dies_its_jobs_are_offered_again(
    worker: MakeWorker, producer: Producer
) -> None:
    """Exit code 3; the jobs are repeated by another worker, the culprit's attempts are used up."""
    async with worker("a") as first:
        await first.ready()
        jobs = await submit(producer, 5)
        await first.says("job.first_token", times=5)
        (culprit,) = await submit(producer, metadata={"fake": "die"}, attempts={"max_attempts": 1})
        assert await first.exit_code() == 3
        await first.says("engine.died")
        assert len(await first.says("job.retried", code="engine_died", times=5)) == 5
        async with worker("b") as second:
            await second.ready()
            found = await results(producer, jobs)
            assert all(isinstance(result.outcome, Completed) for result in found)
            assert len(await second.says("job.resumed", times=5)) == 5
            (failure,) = await results(producer, [culprit])
            assert isinstance(failure.outcome, Failed)
            assert failure.outcome.error.code == "engine_died"


@pytest.mark.case("C42")
async def test_a_hung_engine_is_given_up(worker: MakeWorker, producer: Producer) -> None:
    """No step for `hang_s` with jobs inside: exit code 3, the jobs go to another worker."""
    async with worker("a", hang_s=0.5, lease_s=10) as first:
        await first.ready()
        jobs = await submit(producer, 3)
        await first.says("job.first_token", times=3)
        await submit(producer, metadata={"fake": "hang"}, attempts={"max_attempts": 1})
        assert await first.exit_code() == 3
        async with worker("b") as second:
            await second.ready()
            found = await results(producer, jobs)
            assert all(isinstance(result.outcome, Completed) for result in found)


# --- what a start may meet ----------------------------------------------------


async def test_a_taken_port_is_a_clear_error(worker: MakeWorker) -> None:
    """Exit code 2 and one line that names the option and the port, before any job is touched."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with worker(health_port=port) as only:
            assert await only.exit_code() == 2
            (line,) = await only.says("worker.failed")
            assert line["reason"].startswith(f"health_port: expected a free port on 127.0.0.1, got {port}")


async def test_a_server_that_is_not_there_is_waited_for_and_then_told(worker: MakeWorker) -> None:
    """One line when it is missed, exit code 4 when `start_timeout_s` have passed."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"redis://:canary@127.0.0.1:{free.getsockname()[1]}/0"
    async with worker(url=url, start_timeout_s=1) as only:
        assert await only.exit_code() == 4
        assert len(await only.says("queue.unavailable")) == 1
        assert "canary" not in only.text()


async def test_a_wrong_option_ends_the_start_with_one_line(worker: MakeWorker) -> None:
    """Exit code 2; no traceback for a user's mistake."""
    async with worker(leese_s=3) as only:
        assert await only.exit_code() == 2
        assert only.text().strip() == (
            "laneway worker: --leese-s: expected a known option (did you mean 'lease_s'?), got 'leese_s'"
        )


# --- logs ---------------------------------------------------------------------

CANARY = "canary-5e2f"


async def test_nothing_secret_reaches_the_log(worker: MakeWorker, producer: Producer) -> None:
    """Prompts, stop strings, metadata and custom ids: not at the default level, on no path, not even at the end."""
    async with worker(log_level="info") as only:
        await only.ready()
        secret = {
            "prompt": f"{CANARY} one",
            "model": "demo",
            "metadata": {"custom_id": CANARY},
            "stream": True,
        }
        stop = {"max_tokens": 5, "stop": [CANARY]}
        ways: list[dict[str, Any]] = [
            {"sampling": stop},
            {"sampling": stop, "lora": CANARY},
            {"sampling": stop, "metadata": {"custom_id": CANARY, "fake": "refuse"}},
            {
                "sampling": stop,
                "metadata": {"custom_id": CANARY, "fake": "fail"},
                "attempts": {"max_attempts": 1},
            },
            {"prompt": f"{CANARY} " * 5000},
            {
                "sampling": stop,
                "metadata": {"custom_id": CANARY, "fake": "die"},
                "attempts": {"max_attempts": 1},
            },
        ]
        for way in ways:
            job = await producer.submit(**{**secret, **way})
            result = await producer.result(job.id, 20)
            assert result.metadata["custom_id"] == CANARY
        assert await only.exit_code() == 3
        # An adapter's id is a name, not content: it is in the log on purpose.
        told = [line for line in only.text().splitlines() if CANARY in line]
        assert [line for line in told if f'"lora": "{CANARY}"' not in line] == []


# --- the server ---------------------------------------------------------------


async def test_outcomes_survive_a_crash_of_the_server(
    worker: MakeWorker, start_server: StartServer, namespace: str
) -> None:
    """The server is killed while jobs run, and comes back with its data: each job once, nothing repeated, one line."""
    server = start_server()
    async with (
        worker(url=server.url, lease_s=10) as only,
        Producer(server.url, namespace=namespace, check_model=False) as producer,
    ):
        await only.ready()
        jobs = await submit(producer, 10)
        await only.says("job.first_token", times=10)
        server.kill()
        await only.says("queue.unavailable")
        await asyncio.sleep(1.5)  # the jobs end meanwhile, which nobody can see from outside
        server.start()
        assert_completed(await results(producer, jobs), attempt=1)
        await only.says("queue.recovered")
        assert len(await only.says("queue.unavailable")) == 1
        more = await submit(producer, 3, tokens=2)
        assert_completed(await results(producer, more), attempt=1)
        only.send(signal.SIGTERM)
        assert await only.exit_code() == 0

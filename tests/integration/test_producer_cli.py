"""`laneway submit | result | status | cancel` on a real server."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.support.hand import Hand, hand
from tests.support.wait import wait_until

from laneway.producer import cli
from laneway.schemas import Cancelled, Ended, Failed, JobError, Restarted, Result
from laneway.schemas.ids import new_job_id
from laneway.worker.ports import Claim

pytestmark = pytest.mark.redis


class Shell:
    """Runs `laneway` commands in a thread, as a shell would in a process."""

    def __init__(self, url: str, namespace: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._where = ["--redis-url", url, "--namespace", namespace]
        self._capsys = capsys

    def start(self, *words: str) -> asyncio.Task[int]:
        """A running command."""
        return asyncio.create_task(asyncio.to_thread(cli.main, [*words, *self._where]))

    def said(self) -> tuple[str, str]:
        """Standard output and error since the last call."""
        return self._capsys.readouterr()

    async def run(self, *words: str, code: int = 0) -> tuple[str, str]:
        """What a command said, once it has ended with `code`."""
        assert await self.start(*words) == code, self.said()
        return self.said()


@pytest.fixture
def shell(redis_url: str, namespace: str, capsys: pytest.CaptureFixture[str]) -> Shell:
    """A shell on the test's namespace."""
    return Shell(redis_url, namespace, capsys)


async def claimed(worker: Hand) -> Claim:
    return (await wait_until(worker.claim, "a job"))[0]


async def end(worker: Hand, claim: Claim, outcome: Any) -> None:
    result = Result(job_id=claim.job.id, outcome=outcome, attempt=claim.attempt)
    await worker.queue.settle(claim, result)
    await worker.publish(claim, Ended(job_id=claim.job.id, attempt=claim.attempt, state=result.state.value))


async def test_a_job_from_its_id_to_its_answer(redis_url: str, namespace: str, shell: Shell) -> None:
    """Submit prints the id and nothing else; the other commands take it."""
    async with hand(redis_url, namespace) as worker:
        job_id = (await shell.run("submit", "Hello", "--slo", "throughput", "--deadline", "5m"))[0].strip()
        assert "queued" in (await shell.run("status", job_id))[0]
        assert f"job {job_id} is queued" in (await shell.run("result", job_id, code=1))[1]
        assert "had not ended" in (await shell.run("result", job_id, "--wait", "10ms", code=1))[1]
        claim = await claimed(worker)
        assert claim.job.deadline_ms == 300_000
        await worker.finish(claim, "An answer")
        assert await shell.run("result", job_id) == ("An answer\n", "")
        assert await shell.run("result", job_id, "--wait") == ("An answer\n", "")
        assert json.loads((await shell.run("status", job_id, "--json"))[0])["state"] == "completed"
        assert (await shell.run("cancel", job_id))[0] == "completed\n"


async def test_an_answer_can_be_waited_for_or_watched(redis_url: str, namespace: str, shell: Shell) -> None:
    """`--wait` prints it whole, `--stream` as it comes, `--json` for programs."""
    async with hand(redis_url, namespace) as worker:
        waiting = shell.start("submit", "Hello", "--wait")
        await worker.finish(await claimed(worker), "whole")
        assert (await waiting, shell.said()) == (0, ("whole\n", ""))

        watching = shell.start("submit", "Hello", "--stream")
        claim = await claimed(worker)
        await worker.say(claim, "in ", "pieces")
        await worker.finish(claim, "in pieces")
        assert (await watching, shell.said()) == (0, ("in pieces\n", ""))

        machine = shell.start(
            "submit", "--messages", '[{"role": "user", "content": "Hi"}]', "--stream", "--json"
        )
        claim = await claimed(worker)
        await worker.say(claim, "a")
        await worker.finish(claim, "a")
        assert await machine == 0
        events = [json.loads(line) for line in shell.said()[0].splitlines()]
        assert [event["type"] for event in events] == ["tokens", "ended"]


async def test_a_restart_is_told_beside_the_answer(redis_url: str, namespace: str, shell: Shell) -> None:
    """What follows is a new answer: a person at a terminal must know."""
    async with hand(redis_url, namespace) as worker:
        watching = shell.start("submit", "Hello", "--stream")
        claim = await claimed(worker)
        await worker.say(claim, "old")
        await worker.publish(claim, Restarted(job_id=claim.job.id, attempt=2))
        # Told as it happens: once the job has ended, its stored result may come before the event.
        assert await wait_until(lambda: "starts anew" in shell.said()[1], "the restart on standard error")
        await worker.finish(claim, "old")
        await watching


async def test_a_job_that_did_not_complete_is_exit_code_one(
    redis_url: str, namespace: str, shell: Shell
) -> None:
    """With one line that says why."""
    async with hand(redis_url, namespace) as worker:
        for outcome, line in (
            (
                Failed(error=JobError(code="context", message="too long")),
                "laneway: the job failed: too long (context)\n",
            ),
            (Cancelled(), "laneway: the job was cancelled\n"),
        ):
            waiting = shell.start("submit", "Hello", "--wait")
            await end(worker, await claimed(worker), outcome)
            assert (await waiting, shell.said()) == (1, ("", line))


async def test_a_waiting_job_is_cancelled(shell: Shell) -> None:
    """And its result says so."""
    job_id = json.loads((await shell.run("submit", "Hello", "--json"))[0])["id"]
    assert await shell.run("cancel", job_id) == ("cancelled\n", "")
    assert (await shell.run("result", job_id, code=1))[1] == "laneway: the job was cancelled\n"


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (["submit", ""], 2, "prompt: expected text that is not empty"),
        (["submit", "x", "--temperature", "nan"], 2, "sampling.temperature: expected a number in [0, 100]"),
        (["submit", "x", "--messages", "[]"], 2, "messages: expected either a prompt or --messages"),
        (["submit", "x", "--model", "../x"], 2, "model: expected a name"),
        (["status", "nonsense"], 2, "job id: expected an id returned by submit"),
        (["result", new_job_id("demo", 0)], 1, "no job"),
        (["cancel", new_job_id("demo", 0)], 1, "no job"),
    ],
)  # fmt: skip
async def test_mistakes_are_one_line(shell: Shell, words: list[str], code: int, line: str) -> None:
    """Exit code 2 for what cannot be right, 1 for what did not work."""
    out, err = await shell.run(*words, code=code)
    assert (out, err.count("\n")) == ("", 1)
    assert line in err


def test_no_server_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever was asked."""
    assert cli.main(["submit", "Hello", "--redis-url", "redis://127.0.0.1:1"]) == 1
    assert capsys.readouterr().err == "laneway: Redis at 127.0.0.1:1 cannot be reached: connection refused\n"

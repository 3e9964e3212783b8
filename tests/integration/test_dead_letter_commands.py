"""`laneway dlq` and `laneway jobs`: what an operator sees and does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis.asyncio
from tests.support.builders import failed
from tests.support.hand import hand
from tests.support.letters import bury, die, fields, letters

from laneway.producer import Producer, cli
from laneway.schemas.cards import WorkerCard
from laneway.schemas.ids import WorkerId, new_job_id
from laneway.schemas.keys import Keys

pytestmark = pytest.mark.redis


@pytest.fixture
async def server(redis_url: str) -> AsyncIterator[Any]:
    """The server seen from outside."""
    async with redis.asyncio.Redis.from_url(redis_url, protocol=2) as client:
        yield client


class Commands:
    """`laneway` with the options of one installation, in a thread: the test's loop goes on."""

    def __init__(self, url: str, namespace: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._connection = ["--redis-url", url, "--namespace", namespace]
        self._capsys = capsys

    async def run(self, *words: str, code: int = 0) -> str:
        """What it printed, both streams together."""
        assert await asyncio.to_thread(cli.main, [*words, *self._connection]) == code
        out, err = self._capsys.readouterr()
        return out + err

    async def json(self, *words: str) -> list[Any]:
        """One value a line."""
        return [json.loads(line) for line in (await self.run(*words, "--json")).splitlines()]


@pytest.fixture
def laneway(redis_url: str, namespace: str, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(redis_url, namespace, capsys)


async def test_the_list_is_a_line_for_each_letter(redis_url: str, namespace: str, laneway: Commands) -> None:
    """Id, when, error, attempts, lane; nothing of the prompt."""
    async with hand(redis_url, namespace) as worker, Producer(redis_url, namespace=namespace) as producer:
        job = await die(worker, producer)
        text = await laneway.run("dlq", "list")
        assert text.startswith(job.id)
        assert "engine_died" in text
        assert "latency:short" in text
        assert "secret" not in text
        (line,) = await laneway.json("dlq", "list")
        assert (line["id"], line["error"], line["attempts"]) == (job.id, "engine_died", 1)
        assert await laneway.json("dlq", "list", "--error", "other") == []
        assert await laneway.json("dlq", "list", "--older", "7d") == []


async def test_a_prompt_is_shown_only_when_asked_for(
    redis_url: str, namespace: str, laneway: Commands
) -> None:
    """Everything else of the job is, with the sentence that its consumer got."""
    async with hand(redis_url, namespace) as worker, Producer(redis_url, namespace=namespace) as producer:
        job = await die(worker, producer, metadata={"custom_id": "7"})
        for words in (["dlq", "show", job.id], ["dlq", "show", job.id, "--json"]):
            text = await laneway.run(*words)
            assert "it did not work" in text
            assert "custom_id" in text
            assert "a secret" not in text
            assert "a secret" in await laneway.run(*words, "--payload")


async def test_replaying_from_the_command_line(
    redis_url: str, namespace: str, server: Any, laneway: Commands
) -> None:
    """One by its id; all of an error, leaving the unreadable ones. A letter that is gone is an error in one line."""
    async with hand(redis_url, namespace) as worker, Producer(redis_url, namespace=namespace) as producer:
        job = await die(worker, producer)
        (answer,) = await laneway.json("dlq", "replay", job.id)
        assert answer["letter"] == job.id
        assert "no dead letter" in await laneway.run("dlq", "replay", job.id, code=1)
        await worker.finish(await worker.claim_one())
        await bury(worker, server, namespace, hello="there")
        for _ in range(3):
            await die(worker, producer, "engine_hung")
        await die(worker, producer, "engine_died")
        assert len(await laneway.json("dlq", "replay", "--all", "--error", "engine_hung")) == 3
        text = await laneway.run("dlq", "replay", "--all")
        assert "1 unreadable dead letters were left" in text
        assert len(await letters(producer)) == 1
        claims = await worker.claim()
        assert len(claims) == 4
        await worker.finish_all(claims)


async def test_purging_asks_for_consent(redis_url: str, namespace: str, laneway: Commands) -> None:
    """Without `--yes` it counts, and nothing goes."""
    async with hand(redis_url, namespace) as worker, Producer(redis_url, namespace=namespace) as producer:
        jobs = [await die(worker, producer) for _ in range(40)]
        refused = await laneway.run("dlq", "purge", "--all", code=2)
        assert "deletes 40 dead letters for good: expected --yes" in refused
        assert await laneway.json("dlq", "purge", "--older", "7d", "--yes") == [{"purged": 0}]
        assert await laneway.json("dlq", "purge", jobs[0].id, "--yes") == [{"purged": 1}]
        assert "expected either an id, or --all" in await laneway.run("dlq", "purge", "--yes", code=2)
        assert await laneway.json("dlq", "purge", "--all", "--yes") == [{"purged": 39}]
        assert await letters(producer) == []


async def test_a_job_tells_all_that_is_known_of_it(redis_url: str, namespace: str, laneway: Commands) -> None:
    """Attempts, failures, losses, owner, times, how long it waited, how many listen; no prompt, no answer."""
    async with hand(redis_url, namespace) as worker, Producer(redis_url, namespace=namespace) as producer:
        job = await producer.submit(**fields())
        (facts,) = await laneway.json("jobs", "show", job.id)
        assert (facts["state"], facts["attempts"], facts["owner"], facts["outputs"]) == ("queued", 0, "", 1)
        assert facts["waited_ms"] >= 0
        assert facts["why"] == "no worker of its model is alive"
        await worker.queue.beat(
            WorkerCard(id=WorkerId("w"), model="demo", phase="ready", waits={"latency.short": "no seat"})
        )
        (facts,) = await laneway.json("jobs", "show", job.id)
        assert facts["why"].endswith("the first of its lane wait there for: no seat")
        claim = await worker.claim_one()
        await worker.queue.start(claim)
        (facts,) = await laneway.json("jobs", "show", job.id)
        assert (facts["state"], facts["attempts"], facts["lane"]) == ("running", 1, "latency:short")
        assert facts["owner"].startswith("hand-")
        assert facts["submitted_ms"] <= facts["claimed_ms"] <= facts["started_ms"]
        assert facts["waited_ms"] == facts["claimed_ms"] - facts["submitted_ms"]
        await worker.queue.dead_letter(claim, failed(job.id))
        (facts,) = await laneway.json("jobs", "show", job.id)
        assert (facts["state"], facts["error"], facts["message"]) == (
            "failed",
            "engine_died",
            "it did not work",
        )
        text = await laneway.run("jobs", "show", job.id)
        assert "engine_died: it did not work" in text
        assert "waited" in text
        assert "secret" not in text
        assert "no job" in await laneway.run("jobs", "show", new_job_id("demo", 0), code=1)


async def test_lost_leases_are_counted(
    redis_url: str, namespace: str, laneway: Commands, server: Any
) -> None:
    """As the worker that takes the job over counts them."""
    async with hand(redis_url, namespace) as worker, Producer(redis_url, namespace=namespace) as producer:
        job = await producer.submit(**fields())
        claim = await worker.claim_one()
        await server.hincrby(Keys(namespace).of_job(job.id).job(job.id), "losses", 2)
        (facts,) = await laneway.json("jobs", "show", job.id)
        assert facts["losses"] == 2
        await worker.finish(claim)

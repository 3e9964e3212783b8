"""`laneway top`: one look at a worker that works."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator

import pytest
from rich.console import Console
from tests.support.builders import MODEL, make_job
from tests.support.installations import RedisInstallation
from tests.support.serving import LONG, STEP_S, serving
from tests.support.wait import wait_until

from laneway.producer import Producer, cli
from laneway.worker.cli.top import Frame, look, render
from laneway.worker.engine.fake_engine import FakeEngineSettings

pytestmark = [pytest.mark.redis, pytest.mark.unfinished]


@pytest.fixture
async def ends(redis_url: str, namespace: str) -> AsyncIterator[RedisInstallation]:
    """Both ends of a queue on a real server."""
    made = RedisInstallation(redis_url, namespace)
    yield made
    await made.close()


async def test_a_frame_shows_lanes_seats_and_why_the_first_job_waits(
    ends: RedisInstallation, redis_url: str, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a real worker's card says it; the same for programs as JSON."""

    async def told() -> Frame | None:
        frame = await look(producer)
        return frame if any(card.waits for card in frame.workers) else None

    async with (
        Producer(redis_url, namespace=namespace, listen=False) as producer,
        serving(ends, FakeEngineSettings(seats=2, base_s=STEP_S)) as worker,
    ):
        await ends.submit(*(make_job(slo="throughput", sampling=LONG) for _ in range(9)))
        await worker.says("job.claimed", 3)
        frame = await wait_until(told, "a card with a reason")
        console = Console(file=io.StringIO(), width=140)
        console.print(render(frame))
        assert isinstance(console.file, io.StringIO)
        lines = console.file.getvalue().splitlines()
        (lane,) = (line.split() for line in lines if "throughput.short" in line)
        assert lane[:4] == [MODEL, "throughput.short", "6", "3"]
        assert lane[-3:] == ["kept", "for", "latency"]
        (card,) = (line.split() for line in lines if "ready" in line)
        assert card[:4] == ["a", "ready", "1/2", "2"]
        assert sum("latency." in line for line in lines) == 3
        where = ["--redis-url", redis_url, "--namespace", namespace]
        assert await asyncio.to_thread(cli.main, ["top", "--json", *where]) == 0
        assert json.loads(capsys.readouterr().out)["workers"][0]["id"] == "a"

"""Whole workers with a real engine: mixed work in one engine, and a worker killed with jobs in hand."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.wait import wait_until
from tests.support.worker_process import WorkerProcess

from laneway.producer.client import Producer
from laneway.schemas.job import SloClass
from laneway.schemas.outcome import Completed, Result
from laneway.worker.engine.demo_model import demo_adapters, demo_model

pytestmark = [pytest.mark.redis, pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(600)]

START_S = 300.0
TOPICS = ("the sea", "a small town", "bread", "the moon", "an old clock", "rain", "trains", "a garden")
LORAS = (None, "demo-a", "demo-b")


@pytest.fixture
async def producer(redis_url: str, namespace: str) -> AsyncIterator[Producer]:
    async with Producer(redis_url, namespace=namespace, check_model=False) as made:
        yield made


def real_worker(url: str, namespace: str, log: Path) -> WorkerProcess:
    adapters = {f"adapters.{name}": path for name, path in demo_adapters(demo_model()).items()}
    engine = {"engine.dtype": "float32", "engine.max-num-seqs": 32, "engine.max-model-len": 2048}
    given: dict[str, Any] = {"engine": "vllm", "model": "demo", "lease_s": 15, "latency_share": 0.25}
    return WorkerProcess(url, namespace, log, **{**given, **engine, **adapters})


async def ready(worker: WorkerProcess) -> WorkerProcess:
    await worker.says("phase.changed", phase="ready", timeout=START_S)
    return worker


Asked = tuple[str, str | None, int]


def mixed() -> list[tuple[Asked, SloClass]]:
    """24 throughput and 8 latency jobs over the base model and two adapters, prompts of mixed length."""
    jobs = []
    for number in range(32):
        topic, lora = TOPICS[number % len(TOPICS)], LORAS[number % len(LORAS)]
        slo = SloClass.LATENCY if number % 4 == 3 else SloClass.THROUGHPUT
        prompt = f"Note {number}. " + f"Here is what people say about {topic}. " * (1 + number % 5)
        jobs.append(((prompt, lora, 12), slo))
    return jobs


async def submit(producer: Producer, asked: Asked, slo: SloClass, *, stream: bool = False) -> str:
    prompt, lora, most = asked
    sampling = {"temperature": 0.0, "max_tokens": most, "ignore_eos": True}
    job = await producer.submit(
        model="demo", prompt=prompt, lora=lora, slo=slo, sampling=sampling, stream=stream
    )
    return job.id


async def answers(producer: Producer, jobs: list[str], least: int = 1) -> list[list[int]]:
    """Tokens of each job, which took at least so many attempts: one that makes room for a latency job takes one more."""
    results: list[Result] = await asyncio.gather(*(producer.result(job, 240) for job in jobs))
    found = []
    for result in results:
        assert isinstance(result.outcome, Completed), result.outcome
        assert result.attempt >= least
        found.append(list(result.outcome.choices[0].token_ids))
    return found


async def direct(asked: list[Asked]) -> list[list[int]]:
    """What vLLM itself answers to the same."""
    adapters = {name: str(path) for name, path in demo_adapters(demo_model()).items()}
    words = json.dumps({"model": str(demo_model()), "adapters": adapters, "jobs": asked})
    script = Path(__file__).parents[1] / "support" / "direct_vllm.py"
    process = await asyncio.create_subprocess_exec(
        sys.executable, script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    out, _ = await process.communicate(words.encode())
    assert process.returncode == 0
    tokens: list[list[int]] = json.loads(out.decode().strip().splitlines()[-1])
    return tokens


def children(pid: int) -> list[int]:
    """Every process below `pid`, as the kernel tells."""
    below = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        below += [int(child), *children(int(child))]
    return below


async def test_real_workers_answer_as_vllm_does_also_when_one_is_killed(
    redis_url: str, namespace: str, tmp_path: Path, producer: Producer
) -> None:
    """Mixed work in one engine is answered as by vLLM alone; after a `kill -9` with 20 jobs in hand another worker
    gives each the outcome that an undisturbed run gives, going on from the tokens that were there; no process of the killed worker is left."""
    first_work = mixed()
    second_work: list[Asked] = [
        (f"A story about {TOPICS[n % 8]}, part {n}:", LORAS[n % 3], 40) for n in range(20)
    ]
    async with real_worker(redis_url, namespace, tmp_path / "a.log") as first:
        await ready(first)
        jobs = [await submit(producer, asked, slo) for asked, slo in first_work]
        mixed_answers = await answers(producer, jobs)
        later = [await submit(producer, asked, SloClass.LATENCY, stream=True) for asked in second_work]
        await first.says("job.first_token", times=42, timeout=60)
        family = children(first.pid)
        first.send(signal.SIGKILL)
        await first.exit_code()
        await wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in family), timeout=20)
        async with real_worker(redis_url, namespace, tmp_path / "b.log") as second:
            await ready(second)
            killed_answers = await answers(producer, later, least=2)
            assert await second.says("job.resumed", times=5)
            second.send(signal.SIGTERM)
            assert await second.exit_code(60) == 0
    expected = await direct([asked for asked, _ in first_work] + second_work)
    assert mixed_answers == expected[: len(first_work)]
    assert killed_answers == expected[len(first_work) :]

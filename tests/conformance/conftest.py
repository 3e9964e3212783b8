"""Both ends of a queue, and both engines, each started once for the session: vLLM takes about a minute."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.conftest import NAMES, Servers
from tests.support.engines import Bench
from tests.support.installations import Installation, MemoryInstallation, RedisInstallation

from laneway.worker.engine.create import create_engine
from laneway.worker.engine.demo_model import demo_adapters, demo_model, write_adapter
from laneway.worker.ports import Engine
from laneway.worker.settings import WorkerSettings

SEATS = 8
CONFIG = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}


@pytest.fixture(params=["memory", *(pytest.param(name, marks=pytest.mark.redis) for name in NAMES)])
async def both_ends(
    request: pytest.FixtureRequest, servers: Servers, namespace: str
) -> AsyncIterator[Installation]:
    """A fresh queue, its producer's end and any number of workers' ends."""
    made: MemoryInstallation | RedisInstallation
    if request.param == "memory":
        made = MemoryInstallation()
    else:
        made = RedisInstallation(servers.get(request.param).url, namespace)
    yield made
    await made.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def fake_bench(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    """The fake engine."""
    pytest.importorskip("safetensors")
    folder = tmp_path_factory.mktemp("adapters")
    adapters = {name: folder / name for name in ("demo-a", "demo-b")}
    for seed, path in enumerate(adapters.values()):
        write_adapter(path, CONFIG, seed)
    settings = WorkerSettings(
        engine="fake",
        max_loras=1,
        engine_args={"max_num_seqs": SEATS, "max_num_batched_tokens": 64, "base_s": 0.001},
    )
    async for bench in _serve(create_engine(settings), adapters, "fake"):
        yield bench


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def vllm_bench() -> AsyncIterator[Bench]:
    """vLLM with the demo model."""
    adapters = demo_adapters(demo_model())
    settings = WorkerSettings(
        max_loras=1,
        engine_args={"max_num_seqs": SEATS, "max_num_batched_tokens": 256, "max_model_len": 2048},
    )
    async for bench in _serve(create_engine(settings), adapters, "vllm"):
        yield bench


async def _serve(engine: Engine, adapters: dict[str, Path], kind: str) -> AsyncIterator[Bench]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of vLLM's and torch's imports
        await engine.start(lambda phase, share: None)
    try:
        yield Bench(engine, adapters, kind)
    finally:
        await engine.stop()


@pytest.fixture(params=["fake", pytest.param("vllm", marks=[pytest.mark.vllm, pytest.mark.timeout(400)])])
def bench(request: pytest.FixtureRequest) -> Bench:
    """Each engine in turn."""
    found: Bench = request.getfixturevalue(f"{request.param}_bench")
    return found

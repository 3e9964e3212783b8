"""vLLM's own processes: their death is noticed, and none of them outlives the worker. With real kills."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.wait import wait_until

from laneway.worker.engine.guardian import kill_marked, marked

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(500)]

START_S = 400.0
"""Patience with a start: 30 s on an idle machine, minutes on one that also runs everything else."""


class Driver:
    """A worker-like process with a vLLM engine. What it says goes to a file: a pipe's end would be its children's."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "said"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen([sys.executable, "-m", "tests.support.vllm_driver"], stdout=log)

    @property
    def lines(self) -> list[str]:
        """All whole lines so far."""
        return self._log.read_text().split("\n")[:-1]

    @property
    def mark(self) -> str:
        """What marks the engine's processes; empty until it is told."""
        return next((line.split()[1] for line in self.lines if line.startswith("mark ")), "")

    async def until(self, line: str) -> None:
        """Wait for the process to say `line`."""

        def said() -> bool:
            assert line in self.lines or self.process.poll() is None, f"it ended; it said {self.lines}"
            return line in self.lines

        await wait_until(said, f"{line!r}", timeout=START_S)

    def engine_core(self) -> list[int]:
        """vLLM's engine process, once it has given itself its name."""
        return [pid for pid in marked(self.mark) if b"EngineCore" in _cmdline(pid)]

    async def ended(self) -> None:
        """Wait until no process of the engine is left."""
        await wait_until(lambda: not marked(self.mark), "the engine's end", timeout=5)


def _cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[Driver]:
    """A started driver; whatever is left of it is killed."""
    driver = Driver(tmp_path)
    with driver.process:
        await wait_until(lambda: driver.mark, "the mark", timeout=60)
        yield driver
        driver.process.kill()
    kill_marked(driver.mark)


async def test_the_death_of_the_engine_process_ends_its_jobs(driver: Driver) -> None:
    """`kill -9` of vLLM's process: within two seconds the job fails with EngineDied and `died` is set; `stop` then
    leaves no process behind."""
    await driver.until("running")
    [core] = driver.engine_core()
    os.kill(core, signal.SIGKILL)
    killed = time.monotonic()
    await driver.until("died")
    assert time.monotonic() - killed < 2.0
    await driver.until("stopped 0")
    assert driver.lines[-4:] == ["job the engine died", "died", "late the engine died", "stopped 0"]
    await wait_until(lambda: driver.process.poll() is not None, "its end")
    assert driver.process.returncode == 0


@pytest.mark.case("F69")
async def test_a_killed_worker_takes_its_engine_along(driver: Driver) -> None:
    """`kill -9` of the worker with a job running: no process of the engine is left, though vLLM itself never looks.
    Signals to the worker's group before that do not reach the engine, so that it can drain."""
    await driver.until("running")
    processes = marked(driver.mark)
    assert len(processes) >= 2
    for pid in processes:
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
    await asyncio.sleep(0.5)
    assert marked(driver.mark) == processes
    driver.process.kill()
    await driver.ended()


async def test_a_worker_killed_during_the_start_leaves_nothing(driver: Driver) -> None:
    """The engine process is on its way and nobody knows it yet."""
    await wait_until(driver.engine_core, "the engine process", timeout=START_S)
    driver.process.kill()
    await driver.ended()

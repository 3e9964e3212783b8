"""A process with a vLLM engine in it, for tests that kill one or the other. Says on its output what happens.

python -m tests.support.vllm_driver
"""

from __future__ import annotations

import asyncio
import warnings
from typing import Any

from tests.support.engines import endless

from laneway.worker.engine.vllm_args import VllmSettings
from laneway.worker.engine.vllm_engine import VllmEngine
from laneway.worker.errors import EngineDied

SETTINGS = VllmSettings(model="demo", args={"max_num_seqs": 4, "max_model_len": 1024})


def say(*words: Any) -> None:
    """One line that the test reads."""
    print(*words, flush=True)


async def main() -> None:
    """Start, run a job, and tell what becomes of it."""
    engine = VllmEngine(SETTINGS)
    say("mark", engine._guard.mark)
    try:
        await engine.start(lambda phase, share: say("phase", phase))
        prepared = await engine.prepare(endless(900))
        steps = engine.generate("run", prepared, 0)
        await anext(aiter(steps))
        say("running")
        try:
            async for _ in steps:
                pass
        except EngineDied as error:
            say("job", error)
        async with asyncio.timeout(10):
            await engine.died.wait()
        say("died")
        try:
            async for _ in engine.generate("late", prepared, 0):
                pass
        except EngineDied as error:
            say("late", error)
    finally:
        await engine.stop()
        say("stopped", len(engine._guard.processes()))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    asyncio.run(main())

"""Greedy answers of vLLM itself, without Laneway: `python direct_vllm.py` reads what to run as JSON from standard input.

Input: `{"model": path, "adapters": {name: path}, "jobs": [[prompt, adapter or null, max tokens], ...]}`.
The last line of output is the list of token id lists, in order.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")


async def main() -> None:
    from vllm import SamplingParams
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.lora.request import LoRARequest
    from vllm.v1.engine.async_llm import AsyncLLM

    asked: dict[str, Any] = json.load(sys.stdin)
    llm = AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=asked["model"],
            dtype="float32",
            enforce_eager=True,
            max_model_len=2048,
            max_num_seqs=32,
            max_num_batched_tokens=512,
            enable_lora=True,
            max_loras=3,  # one slot stays empty: on a CPU, base-model jobs get what the last slot holds
            max_lora_rank=8,
        )
    )
    adapters = {
        name: LoRARequest(name, number, path)
        for number, (name, path) in enumerate(sorted(asked["adapters"].items()), 1)
    }

    async def run(number: int, prompt: str, lora: str | None, most: int) -> list[int]:
        tokens: list[int] = []
        sampling = SamplingParams(temperature=0, max_tokens=most, ignore_eos=True)
        request = adapters[lora] if lora else None
        async for output in llm.generate(prompt, sampling, str(number), lora_request=request):
            tokens = list(output.outputs[0].token_ids)
        return tokens

    answers = await asyncio.gather(*(run(number, *job) for number, job in enumerate(asked["jobs"])))
    llm.shutdown()
    print("\n" + json.dumps(answers))


if __name__ == "__main__":
    asyncio.run(main())

"""vLLM's scheduler without an engine: configuration from a folder, and a model that is a formula."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
    "torch_dtype": "float32",
}
BLOCK = 16


def make_scheduler(cls: type, folder: Path, *, blocks: int, seats: int = 16, tokens: int = 256) -> Any:
    """A scheduler of class `cls` with `blocks` KV blocks of 16 tokens and without prefix cache."""
    import torch
    from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    (folder / "config.json").write_text(json.dumps(CONFIG))
    config = VllmConfig(
        model_config=ModelConfig(
            model=str(folder), skip_tokenizer_init=True, dtype="float32", max_model_len=1024
        ),
        cache_config=CacheConfig(block_size=BLOCK, enable_prefix_caching=False),
        scheduler_config=SchedulerConfig(
            max_num_seqs=seats,
            max_num_batched_tokens=tokens,
            max_model_len=1024,
            is_encoder_decoder=False,
            enable_chunked_prefill=True,
            policy="priority",
            async_scheduling=issubclass(cls, AsyncScheduler),
        ),
    )
    config.scheduler_config.async_scheduling = issubclass(cls, AsyncScheduler)
    config.cache_config.num_gpu_blocks = blocks
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=2, head_size=16, dtype=torch.float32)
    return cls(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK,
        log_stats=True,
    )


@dataclass
class Formula:
    """Runs a scheduler's steps. A job's next token follows from all its tokens before, as a greedy model's does."""

    scheduler: Any
    ahead: bool
    """One step is scheduled while its predecessor runs, as an asynchronous engine does."""
    answers: dict[str, list[int]] = field(default_factory=dict)
    known: dict[str, list[int]] = field(default_factory=dict)
    computed: dict[str, int] = field(default_factory=dict)
    shares: list[dict[str, int]] = field(default_factory=list)
    """What each step computed."""
    _flying: deque[Any] = field(default_factory=deque)

    def add(self, name: str, prompt: list[int], tokens: int, priority: int, arrival: float) -> None:
        """A job."""
        from vllm import SamplingParams
        from vllm.v1.request import Request

        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        self.known[name], self.answers[name] = list(prompt), []
        self.scheduler.add_request(
            Request(
                request_id=name,
                prompt_token_ids=prompt,
                sampling_params=params,
                pooling_params=None,
                arrival_time=arrival,
                priority=priority,
            )
        )

    def step(self) -> None:
        """Schedule one step, and take in the results that are due."""
        output = self.scheduler.schedule()
        self.shares.append(dict(output.num_scheduled_tokens))
        self._flying.append((output, self._compute(output)))
        while len(self._flying) > (1 if self.ahead else 0):
            self._return(*self._flying.popleft())

    def finish(self, most: int = 5000) -> None:
        """Step until nothing is left."""
        while self.scheduler.has_requests():
            most -= 1
            assert most > 0, "the scheduler makes no progress"
            self.step()
        while self._flying:
            self._return(*self._flying.popleft())

    def _compute(self, output: Any) -> dict[str, int]:
        """The token of each job whose known tokens are all computed. One that is sampled twice is the same."""
        for data in output.scheduled_new_reqs:
            self.computed[data.req_id] = data.num_computed_tokens
        cached = output.scheduled_cached_reqs
        self.computed.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        sampled = {}
        for name, tokens in output.num_scheduled_tokens.items():
            at = self.computed[name] = self.computed[name] + tokens
            tape = self.known[name]
            assert at <= len(tape), "a job is computed beyond what it has"
            if self.scheduler.requests[name].is_prefill_chunk:
                continue
            sampled[name] = (sum(tape[:at]) * 31 + at * 7) % 1000
            if at == len(tape):
                tape.append(sampled[name])
        return sampled

    def _return(self, output: Any, sampled: dict[str, int]) -> None:
        from vllm.v1.outputs import ModelRunnerOutput

        names = list(output.num_scheduled_tokens)
        results = self.scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: i for i, name in enumerate(names)},
                sampled_token_ids=[[sampled[name]] if name in sampled else [] for name in names],
                logprobs=None,
                prompt_logprobs_dict={},
                pooler_output=[],
            ),
        )
        for batch in results.values():
            for item in batch.outputs:
                self.answers[item.request_id].extend(item.new_token_ids)

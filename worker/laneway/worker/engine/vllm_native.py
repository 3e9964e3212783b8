"""The only module that imports vLLM: it takes seconds to import, so the engine does so in a thread.

Runs on vLLM 0.26 to 0.32; what differs between them is here.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import vllm
from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.inputs import TokensPrompt
from vllm.lora.request import LoRARequest
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.detokenizer import IncrementalDetokenizer
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError
from vllm.v1.metrics.loggers import StatLoggerBase

from laneway.schemas.errors import LanewayError
from laneway.schemas.job import Job
from laneway.schemas.sampling import Sampling, StructuredOutput
from laneway.worker.engine.slo import scheduler_class
from laneway.worker.engine.vllm_args import VllmSettings, check_names, engine_args, spare_slots
from laneway.worker.engine.vllm_prepare import first_line
from laneway.worker.errors import AttemptFailed, EngineDied, EngineStartFailed, JobRefused, SettingsError
from laneway.worker.ports import EngineInfo, Prepared

DEAD = "the engine died"

# 0.32 has a class for what a job did wrong; before, it was ValueError.
_CLIENT = getattr(import_module("vllm.exceptions"), "VLLMClientError", ValueError)
_JOBS_FAULT = (_CLIENT, ValueError, TypeError, OverflowError)


def build(settings: VllmSettings, model: str, record: Callable[[Any, Any], None]) -> Any:
    """An `AsyncLLM`, up and running. Blocks for as long as it takes.

    Args:
        record: called on the event loop after every step with vLLM's scheduler and iteration stats (or None).

    Raises:
        SettingsError: an argument that the installed vLLM does not know.
        EngineStartFailed: wrong values, or the engine did not come up.
    """
    check_names(settings.args, [field.name for field in dataclasses.fields(AsyncEngineArgs)])
    values = engine_args(settings, model, cpu=_is_cpu())
    if settings.scheduler == "slo" and "scheduler_cls" not in values:
        ahead = values.get("async_scheduling") is not False
        if (chosen := scheduler_class(vllm.__version__, asynchronous=ahead)) is not None:
            values["scheduler_cls"] = chosen
    try:
        args = AsyncEngineArgs(**values)
        config = args.create_engine_config()
    except Exception as error:  # pydantic, OSError, RuntimeError...: every wrong option ends here
        if settings.args and isinstance(error, TypeError | ValueError):
            raise SettingsError(f"engine: vLLM refused its arguments: {_reason(error)}") from None
        raise EngineStartFailed(f"vLLM cannot load {settings.model}: {_reason(error)}") from None
    del config  # made again by the engine; here it only told what is wrong before a process is started
    try:
        return AsyncLLM.from_engine_args(args, stat_loggers=[_logger(record)])
    except Exception as error:
        raise EngineStartFailed(f"vLLM did not come up: {first_line(error)}") from None


def _reason(error: Exception) -> str:
    """The first of a pydantic error's findings, without its ornaments; of other errors their text."""
    found = error.errors()[0] if hasattr(error, "errors") else None
    if not found:
        return first_line(error)
    where = ".".join(str(part) for part in found["loc"][:1])
    return first_line(ValueError(f"{where}: {found['msg']}" if where else found["msg"]))


def info(llm: Any, settings: VllmSettings) -> EngineInfo:
    """What came up, as vLLM's configuration tells after the start."""
    config = llm.vllm_config
    cache = config.cache_config
    tokens = getattr(cache, "kv_cache_size_tokens", None) or cache.num_gpu_blocks * cache.block_size
    return EngineInfo(
        model=settings.model,
        version=f"vllm {vllm.__version__}",
        context_tokens=config.model_config.max_model_len,
        vocabulary=config.model_config.get_vocab_size(),
        seats=config.scheduler_config.max_num_seqs,
        step_tokens=config.scheduler_config.max_num_batched_tokens,
        kv_tokens=tokens,
        max_loras=_slots(config.lora_config),
        prefix_cache=bool(cache.enable_prefix_caching),
        burst=1 + (getattr(config.speculative_config, "num_speculative_tokens", 0) or 0),
    )


def lora_limits(llm: Any) -> tuple[int, int]:
    """The engine's `max_lora_rank`, and how many adapters it may hold at a time."""
    lora = llm.vllm_config.lora_config
    if lora is None:
        return 0, 0
    if _is_cpu():
        return lora.max_lora_rank, _slots(lora)
    return lora.max_lora_rank, lora.max_cpu_loras or lora.max_loras


def _slots(lora: Any) -> int:
    return int(lora.max_loras) - spare_slots(cpu=_is_cpu()) if lora else 0


def _is_cpu() -> bool:
    return bool(current_platform.is_cpu())


def lora_request(name: str, number: int, path: str) -> Any:
    """An adapter as vLLM names it. Name and path are part of the prefix cache's keys."""
    return LoRARequest(lora_name=name, lora_int_id=number, lora_path=path)


def prompt(token_ids: tuple[int, ...]) -> Any:
    """A tokenised prompt as `generate` takes it."""
    return TokensPrompt(prompt_token_ids=list(token_ids))


def tokenizer(llm: Any) -> Any:
    """The model's tokenizer; None for an engine that was told to run without one."""
    return None if llm.vllm_config.model_config.skip_tokenizer_init else llm.get_tokenizer()


def sampling_params(llm: Any, job: Job, max_tokens: int) -> Any:
    """The job's sampling as vLLM's, checked by vLLM itself against the model and with its grammar compiled.

    Raises:
        JobRefused: `invalid_sampling`, with vLLM's reason.
    """
    try:
        params = SamplingParams(**_fields(job.sampling), max_tokens=max_tokens)
        config = llm.vllm_config
        params.clone().verify(
            config.model_config,
            config.speculative_config,
            config.structured_outputs_config,
            tokenizer(llm),
        )
    except _JOBS_FAULT as error:
        raise JobRefused("invalid_sampling", f"sampling: {first_line(error)}", "sampling") from None
    return params


def detokenizer(llm: Any, prepared: Prepared) -> Any:
    """What makes vLLM's texts, for the answer to a prompt without the answer's own beginning."""
    request = SimpleNamespace(
        request_id="",
        prompt_token_ids=list(prepared.prompt_token_ids[: -prepared.generated]),
        prompt_embeds=None,
        sampling_params=prepared.native,
    )
    return IncrementalDetokenizer.from_new_request(llm.output_processor.tokenizer, request)


_SAME = (
    "n", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "seed", "min_tokens", "include_stop_str_in_output", "ignore_eos", "logprobs", "logit_bias",
    "skip_special_tokens", "spaces_between_special_tokens",
)  # fmt: skip
_LISTS = ("stop", "stop_token_ids", "bad_words", "allowed_token_ids")


def _fields(sampling: Sampling) -> dict[str, Any]:
    fields: dict[str, Any] = {name: getattr(sampling, name) for name in _SAME}
    fields |= {name: list(given) for name in _LISTS if (given := getattr(sampling, name))}
    if sampling.structured_outputs is not None:
        fields["structured_outputs"] = _structured(sampling.structured_outputs)
    return fields | {"output_kind": RequestOutputKind.DELTA}


def _structured(constraint: StructuredOutput) -> Any:
    return StructuredOutputsParams(
        json=constraint.json,
        regex=constraint.regex,
        choice=list(constraint.choice) if constraint.choice else None,
        grammar=constraint.grammar,
        json_object=constraint.json_object,
    )


def blame(error: BaseException) -> LanewayError:
    """What an exception of `generate` or of a call into the engine means."""
    if isinstance(error, LanewayError):
        return error
    if isinstance(error, EngineDeadError):
        return EngineDied(DEAD)
    cause = error.__cause__ if isinstance(error, EngineGenerateError) else error
    if isinstance(cause, EngineDeadError):
        return EngineDied(DEAD)
    if isinstance(cause, _JOBS_FAULT):
        return JobRefused("invalid_job", f"the engine refused the job: {first_line(cause)}")
    return AttemptFailed(f"the engine failed the attempt ({type(cause or error).__name__})")


def dead_error() -> Exception:
    """What vLLM raises in every run once it is dead."""
    dead: Exception = EngineDeadError()
    return dead


def quiet() -> None:
    """Keep libraries that vLLM brings from logging below a warning."""
    for name in ("transformers", "httpx", "huggingface_hub", "torch", "asyncio"):
        logger = logging.getLogger(name)
        logger.setLevel(max(logging.WARNING, logger.level))


def _logger(record: Callable[[Any, Any], None]) -> Any:
    class Steps(StatLoggerBase):  # type: ignore[misc]
        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
            pass

        def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
            record(scheduler_stats, iteration_stats)

        def log_engine_initialized(self) -> None:
            pass

    return Steps

"""From the worker's settings to vLLM's. Everything that decides how the engine schedules is said explicitly."""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from laneway.schemas.errors import nearest, shown
from laneway.worker.engine.adapter_files import adapter_rank
from laneway.worker.errors import SettingsError
from laneway.worker.settings import WorkerSettings

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Values that vLLM takes as `max_lora_rank`, but for 1."""

ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    # Without the dump of all jobs, prompts' settings included, that vLLM writes when it dies.
    "VLLM_LOGGING_CONFIG_PATH": str(Path(__file__).with_name("vllm_logging.json")),
    # A forked engine would hold the worker's sockets open after the worker's end.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "TOKENIZERS_PARALLELISM": "false",
}


class VllmSettings(Struct, frozen=True, kw_only=True):
    """What the vLLM engine is made of."""

    model: str
    """`demo`, a folder or a Hugging Face id."""
    max_loras: int = 0
    adapters: tuple[str, ...] = ()
    """Folders of the adapters known at start: the largest rank among them decides `max_lora_rank`."""
    scheduler: Literal["slo", "stock"] = "stock"
    """`slo`: the second level of scheduling in the engine."""
    tpot_ms: int = 0
    """What the second level keeps between two tokens of a latency job; 0: its own default."""
    args: dict[str, Any] = {}
    """Arguments of vLLM's `AsyncEngineArgs`; they win over everything that is chosen here."""


def vllm_settings(settings: WorkerSettings) -> VllmSettings:
    """The engine's part of a worker's settings."""
    return VllmSettings(
        model=settings.model,
        max_loras=settings.max_loras or min(8, len(settings.adapters)),
        adapters=tuple(settings.adapters.values()),
        scheduler=settings.scheduler,
        tpot_ms=settings.tpot_ms,
        args=dict(settings.engine_args),
    )


def set_environment() -> None:
    """Set what vLLM reads from the environment, where nobody has. Must come before vLLM is imported."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if find_spec("flashinfer") is None:
        os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")


def engine_args(settings: VllmSettings, model: str, *, cpu: bool) -> dict[str, Any]:
    """Keyword arguments for `AsyncEngineArgs`.

    Seats and step budget of a GPU are those that were measured on an H200 with a 7B; a CPU core does a few hundred
    prompt tokens in half a second.
    """
    args: dict[str, Any] = {
        "model": model,
        "max_num_seqs": 16 if cpu else 256,
        "max_num_batched_tokens": 512 if cpu else 2048,
        "enable_chunked_prefill": True,
        "enable_prefix_caching": True,
        "scheduling_policy": "priority",
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
    }
    if cpu:
        # Compiling takes 190 s at every start, and the CPU has no asynchronous scheduler.
        args |= {"enforce_eager": True, "async_scheduling": False, "dtype": cpu_dtype()}
    if settings.max_loras:
        slots = settings.max_loras + spare_slots(cpu=cpu)
        args |= {
            "enable_lora": True,
            "max_loras": slots,
            "max_lora_rank": lora_rank(settings.adapters, least=8 if cpu else 16),
            "max_cpu_loras": max(2 * slots, min(64, len(settings.adapters))),
        }
    return args | settings.args


def spare_slots(*, cpu: bool) -> int:
    """Adapter slots that must stay empty: one on a CPU.

    vLLM's CPU kernels take base-model jobs for jobs of the last slot as soon as one job of the batch has an adapter.
    An empty slot adds nothing. Slots are filled from the first, so it stays empty while fewer adapters are held.
    """
    return 1 if cpu else 0


def cpu_dtype(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """`auto` where the processor computes in bfloat16. Elsewhere float32: emulated, a prompt takes 20 times as long."""
    try:
        words = set(cpuinfo.read_text().split())
    except OSError:
        return "auto"
    return "auto" if words & {"avx512_bf16", "amx_bf16", "bf16"} else "float32"


def lora_rank(adapters: Iterable[str], least: int = 16) -> int:
    """The smallest rank that vLLM takes and that every adapter fits; 16, vLLM's default, where none is known.

    Args:
        least: smallest answer. A CPU's time for adapters grows with it; a GPU's memory for them is small anyway.
    """
    ranks = [rank for path in adapters if 0 < (rank := adapter_rank(path)) <= RANKS[-1]]
    return next(rank for rank in RANKS if rank >= max([least, *ranks] if ranks else [16]))


def check_names(args: Iterable[str], known: Iterable[str]) -> None:
    """Every argument exists in the installed vLLM.

    Raises:
        SettingsError: with the nearest known name.
    """
    names = set(known)
    for name in args:
        if name in ("model", "max_loras"):
            raise SettingsError(f"engine.{name}: expected nothing here, since the option `{name}` says it")
        if name not in names:
            raise SettingsError(
                f"engine.{name}: expected an argument of the installed vLLM{nearest(name, names)}, "
                f"got {shown(name)}"
            )

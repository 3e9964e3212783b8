"""The engine that a worker's settings ask for. vLLM is imported only when it is the one."""

from __future__ import annotations

from typing import Any

import msgspec

from laneway.schemas.errors import nearest
from laneway.worker.engine.fake_engine import FakeEngine, FakeEngineSettings
from laneway.worker.errors import SettingsError
from laneway.worker.ports import Engine
from laneway.worker.settings import WorkerSettings

VLLM_NAMES = {
    "max_num_seqs": "seats",
    "max_num_batched_tokens": "step_tokens",
    "max_model_len": "context_tokens",
}
"""vLLM's names for what the fake engine has too, so that one configuration serves both."""


def create_engine(settings: WorkerSettings) -> Engine:
    """The engine, not yet started.

    Raises:
        SettingsError: an engine option that this engine does not have, or a value of a wrong type.
        EngineStartFailed: vLLM is not installed, or cannot be imported.
    """
    if settings.engine == "fake":
        return FakeEngine(fake_settings(settings))
    from laneway.worker.engine.vllm_args import vllm_settings
    from laneway.worker.engine.vllm_engine import VllmEngine

    return VllmEngine(vllm_settings(settings))


def fake_settings(settings: WorkerSettings) -> FakeEngineSettings:
    """`[engine]` as the fake engine's settings. Raises `SettingsError`."""
    values: dict[str, Any] = {"model": settings.model}
    if settings.max_loras or settings.adapters:
        values["max_loras"] = settings.max_loras or min(8, len(settings.adapters))
    for option, value in settings.engine_args.items():
        name = VLLM_NAMES.get(option, option)
        if name not in FakeEngineSettings.__struct_fields__:
            hint = nearest(option, (*FakeEngineSettings.__struct_fields__, *VLLM_NAMES))
            raise SettingsError(f"engine.{option}: expected an option of the fake engine{hint}")
        values[name] = value
    try:
        return msgspec.convert(values, FakeEngineSettings, strict=False)
    except msgspec.ValidationError as error:
        raise SettingsError(f"engine: {error}") from None

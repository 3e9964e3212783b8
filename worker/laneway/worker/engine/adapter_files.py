"""An adapter's files, looked at before the engine sees them: a bad adapter met inside a step ends every job."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from laneway.schemas.errors import shown
from laneway.worker.errors import JobRefused
from laneway.worker.ports import Adapter

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
MOST_HEADER = 64 * 1024 * 1024
"""Bytes of a safetensors header that are still read; a 70B's adapter needs about 300 KB."""


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


def check_adapter_files(adapter: Adapter, max_rank: int) -> None:
    """Check that the engine will be able to load the adapter, as far as its files tell.

    Raises:
        JobRefused: `bad_adapter`, with what is wrong; `adapter_missing` when the folder or a file is not there.
    """
    folder = Path(adapter.path)
    if not folder.is_dir():
        raise JobRefused("adapter_missing", f"lora: the folder of adapter {adapter.id} is not there", "lora")
    config = _config(adapter, folder)
    _check_config(adapter, config, max_rank)
    _check_tensors(adapter, _header(adapter, folder), max_rank)


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


def _header(adapter: Adapter, folder: Path) -> Mapping[str, Any]:
    """The tensors of the weights file: name to dtype, shape and place."""
    path = folder / WEIGHTS
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(length, MOST_HEADER)))
        header.pop("__metadata__", None)
        end = 8 + length + max(tensor["data_offsets"][1] for tensor in header.values())
    except OSError:
        raise JobRefused(
            "adapter_missing", f"lora: adapter {adapter.id} has no readable {WEIGHTS}", "lora"
        ) from None
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, struct.error, RecursionError):
        raise _refuse(adapter, f"{WEIGHTS} is empty, damaged or cut off") from None
    if end != size:
        raise _refuse(adapter, f"{WEIGHTS} is damaged or cut off: expected {end} bytes, got {size}")
    return dict(header)


def _check_tensors(adapter: Adapter, header: Mapping[str, Any], max_rank: int) -> None:
    for name, tensor in header.items():
        shape = tensor.get("shape") or [0]
        if ".lora_A." in name:
            rank = shape[0]
        elif ".lora_B." in name:
            rank = shape[-1]
        else:
            raise _refuse(adapter, f"it holds more than LoRA matrices ({shown(name)})")
        if not 1 <= rank <= max_rank:
            raise _refuse(adapter, f"{shown(name)} has rank {rank} and the engine's limit is {max_rank}")

"""What a model is loaded from: a folder with everything in it, a Hugging Face id, or `demo`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from laneway.worker.errors import EngineStartFailed

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json")
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf", "*.pth")


def resolve_model(name: str, args: Mapping[str, Any] | None = None) -> str:
    """What the engine is given for the model `name`: a folder's path, or the id as it is.

    With the engine arguments `load_format=dummy` a folder needs no weights, with `skip_tokenizer_init` no tokenizer.

    Raises:
        EngineStartFailed: there is no such folder, or files are missing in it (they are named).
    """
    from laneway.worker.engine.demo_model import DEMO, demo_model

    if name == DEMO:
        return str(demo_model())
    folder = Path(name).expanduser()
    if not folder.is_dir():
        if name.startswith(("/", "./", "../", "~")):
            raise EngineStartFailed(f"model: expected a folder, a Hugging Face id or demo, got {name}")
        return name
    args = args or {}
    weights, tokenizer = args.get("load_format") != "dummy", not args.get("skip_tokenizer_init")
    if lacks := missing_files(folder, weights=weights, tokenizer=tokenizer):
        raise EngineStartFailed(f"model: {folder} lacks {lacks}")
    return str(folder)


def missing_files(folder: Path, *, weights: bool = True, tokenizer: bool = True) -> str:
    """Names what a model folder lacks of what is needed, or nothing."""
    if not (folder / "config.json").is_file():
        return "config.json"
    if tokenizer and not any((folder / name).is_file() for name in _TOKENIZERS):
        return "tokenizer.json"
    if not weights:
        return ""
    for index in folder.glob("*.safetensors.index.json"):
        try:
            shards = set(json.loads(index.read_text())["weight_map"].values())
        except (ValueError, KeyError, AttributeError):
            return f"a readable {index.name}"
        gone = sorted(shard for shard in shards if not (folder / shard).is_file())
        if gone:
            return gone[0] if len(gone) == 1 else f"{gone[0]} and {len(gone) - 1} more weight files"
    if not any(file for pattern in _WEIGHTS for file in folder.glob(pattern)):
        return "model.safetensors"
    return ""

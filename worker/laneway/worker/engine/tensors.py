"""Names and shapes of the tensors in safetensors files, read from their headers alone."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

MOST_HEADER = 64 * 1024 * 1024
"""Bytes of a header that are still read; that of a 70B model in one file takes about 100 KB."""

Shapes = Mapping[str, tuple[int, ...]]


class DamagedFile(ValueError):
    """Not a whole safetensors file. The text says what is wrong with it."""


def read_shapes(path: Path) -> Shapes:
    """Each tensor's shape, by name.

    Raises:
        DamagedFile: no such format, or the file is cut off.
        OSError: it cannot be read.
    """
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(length, MOST_HEADER)))
        header.pop("__metadata__", None)
        end = 8 + length + max(tensor["data_offsets"][1] for tensor in header.values())
        shapes = {name: tuple(map(int, tensor["shape"])) for name, tensor in header.items()}
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, struct.error, RecursionError):
        raise DamagedFile("is empty, damaged or cut off") from None
    if end != size:
        raise DamagedFile(f"is damaged or cut off: expected {end} bytes, got {size}")
    return shapes


def folder_shapes(folder: Path) -> Shapes:
    """The shapes of all tensors in a model folder; empty where it holds none in this format."""
    shapes: dict[str, tuple[int, ...]] = {}
    for path in folder.glob("*.safetensors"):
        with suppress(DamagedFile, OSError):
            shapes.update(read_shapes(path))
    return shapes

"""Name, dtype and shape of every tensor of a checkpoint, from the headers of its safetensors; no data is read.

``headers.json`` beside a config.json holds the same for a machine without the checkpoint.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = "headers.json"
INDEX = "model.safetensors.index.json"
#: A header longer than this is damaged: 100,000 tensors take about 15 MB.
_LONGEST = 256 << 20

#: Name -> dtype as safetensors spells it, and shape.
Tensors = Mapping[str, tuple[str, tuple[int, ...]]]


class BadHeaders(ValueError):
    """A file that is no safetensors, or no headers file; the text says which."""


def of_folder(folder: Path) -> Tensors | None:
    """Headers of a checkpoint's folder: its headers.json, or its safetensors; None where it has neither."""
    given = folder / FILE
    if given.is_file():
        return _from_json(given)
    files = _files(folder)
    if not files:
        return None
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    for file in files:
        tensors |= of_file(file)
    return tensors


def _files(folder: Path) -> list[Path]:
    """The files that the index names, or all; SGLang leaves out what the index does not name, too."""
    index = folder / INDEX
    if index.is_file():
        try:
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise BadHeaders(f"{index.name} cannot be read: {type(error).__name__}") from None
        missing = sorted(name for name in names if not (folder / str(name)).is_file())
        if missing:
            raise BadHeaders(f"{index.name} names {missing[0]}, which is not there")
        return [folder / str(name) for name in sorted(names)]
    return sorted(folder.glob("*.safetensors"))


def of_file(file: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The header of one safetensors file."""
    try:
        with file.open("rb") as handle:
            (length,) = struct.unpack("<Q", handle.read(8))
            if length > _LONGEST:
                raise BadHeaders(f"{file.name} is no safetensors file")
            header = json.loads(handle.read(length))
        return {
            str(name): (str(entry["dtype"]), tuple(int(n) for n in entry["shape"]))
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        if isinstance(error, BadHeaders):
            raise
        raise BadHeaders(f"{file.name} is no safetensors file: {type(error).__name__}") from None


def _from_json(file: Path) -> Tensors:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        return {
            str(name): (str(dtype), tuple(int(n) for n in shape))
            for name, (dtype, shape) in data["tensors"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadHeaders(
            f"{file.name} is not what `sglang-guards headers` writes: {type(error).__name__}"
        ) from None


def to_json(tensors: Tensors) -> str:
    """What goes into headers.json."""
    body: dict[str, Any] = {
        "format": 1,
        "tensors": {name: [dtype, list(shape)] for name, (dtype, shape) in sorted(tensors.items())},
    }
    return json.dumps(body, separators=(",", ":"))

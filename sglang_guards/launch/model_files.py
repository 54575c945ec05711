"""A checkpoint's configuration without its weights: read it, test it, and lay it out so that SGLang can load it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from sglang_guards.errors import CouldNotCheck

CONFIG = "config.json"
#: Files that are linked beside a rewritten config: small ones that resolution may read, never code or weights.
_BESIDE = (".json", ".txt", ".jinja", ".model", ".tiktoken", ".yaml")


def read(path: Path) -> dict[str, Any]:
    """A config.json, or the one in a folder; raises `CouldNotCheck` when it is missing, damaged or empty of meaning."""
    file = path / CONFIG if path.is_dir() else path
    if not file.is_file():
        where = f"{path} has no {CONFIG}" if path.is_dir() else f"{path} does not exist"
        raise CouldNotCheck(f"model config {where}", "give the checkpoint's config.json or its folder")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CouldNotCheck(f"model config {file} cannot be read: {_brief(error)}") from None
    if _depth(config) > _DEEPEST:
        raise CouldNotCheck(f"model config {file} is nested more than {_DEEPEST} levels deep")
    if not isinstance(config, dict):
        raise CouldNotCheck(f"model config {file} holds {type(config).__name__}, not an object")
    names = config.get("architectures")
    if not (isinstance(names, list) and names and all(isinstance(name, str) for name in names)):
        raise CouldNotCheck(
            f"model config {file} names no architectures",
            "give the config.json of the checkpoint that is served",
        )
    return config


#: Real configs have about six levels; far more would end in a RecursionError somewhere.
_DEEPEST = 100


def _depth(value: Any) -> int:
    """How deep lists and objects are nested, without recursion."""
    depth, level = 0, [value]
    while level := [v for v in level if isinstance(v, (dict, list))]:
        depth += 1
        if depth > _DEEPEST:
            break
        level = [inner for v in level for inner in (v.values() if isinstance(v, dict) else v)]
    return depth


def _brief(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def lay_out(config: dict[str, Any], beside: Path, name: str, root: Path) -> Path:
    """A folder below `root` that ends in the model's name (SGLang looks at it) and holds `config`.

    References to code that the checkpoint brings (`auto_map`) are dropped, so that none can run. Other small files
    in the folder `beside` are linked.
    """
    folder = root / "model" / _safe(name)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(json.dumps(_without_code(config)), encoding="utf-8")
    for file in beside.iterdir() if beside.is_dir() else ():
        link = folder / file.name
        if file.suffix in _BESIDE and file.is_file() and not link.exists() and _is_plain(file):
            link.symlink_to(file.resolve())
    return folder


def _is_plain(file: Path) -> bool:
    """Tokenizer and processor configs can name code of their own; those stay behind."""
    if file.suffix != ".json" or file.stat().st_size > 1 << 20:
        return True
    try:
        return "auto_map" not in file.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False


def _without_code(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_code(v) for k, v in value.items() if k != "auto_map"}
    if isinstance(value, list):
        return [_without_code(v) for v in value]
    return value


def _safe(name: str) -> str:
    """The last two parts of a model path, as folder names."""
    parts = [
        re.sub(r"[^\w.-]", "_", part) for part in name.strip("/").split("/") if part not in ("", ".", "..")
    ]
    return "/".join(parts[-2:]) or "model"


def has_code(config: dict[str, Any]) -> bool:
    """Whether the config names Python code that the checkpoint brings."""
    return "auto_map" in json.dumps(config)


def looks_local(path: str) -> bool:
    """Whether a model path can only be a path: hub ids have at most one slash and no leading dot, slash or tilde."""
    return path.startswith(("/", ".", "~")) or "\\" in path or path.endswith("/") or path.count("/") > 1

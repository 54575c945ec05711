"""SGLang's model registry with only the modules that a launch needs: importing all of them takes seconds."""

from __future__ import annotations

import contextlib
import pkgutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

_REGISTRY = "sglang.srt.models.registry"
_MODELS = "sglang.srt.models."


def prepare(architectures: Iterable[str]) -> None:
    """Import the registry. Modules of SGLang whose text names none of the architectures are left out."""
    if _REGISTRY in sys.modules:
        return
    with _only(frozenset(architectures)):
        __import__(_REGISTRY)


@contextlib.contextmanager
def _only(architectures: frozenset[str]) -> Iterator[None]:
    original = pkgutil.iter_modules

    def iter_modules(path: Any = None, prefix: str = "") -> Iterator[Any]:
        for info in original(path, prefix):
            if prefix != _MODELS or info.ispkg or _names_one(info, architectures):
                yield info

    pkgutil.iter_modules = iter_modules
    try:
        yield
    finally:
        pkgutil.iter_modules = original


def _names_one(info: Any, architectures: frozenset[str]) -> bool:
    file = Path(getattr(info.module_finder, "path", "")) / f"{info.name.rpartition('.')[2]}.py"
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return True
    return any(name in text for name in architectures)

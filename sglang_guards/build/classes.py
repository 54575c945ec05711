"""SGLang's model registry with only the modules that a launch needs: importing all of them takes seconds."""

from __future__ import annotations

import contextlib
import importlib
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
    text = _text(info)
    return text is None or any(name in text for name in architectures)


def registered(architectures: Iterable[str]) -> bool:
    """Whether SGLang's registry has a class for one of them."""
    return any(name in getattr(sys.modules[_REGISTRY].ModelRegistry, "models", ()) for name in architectures)


def failed_import(architectures: Iterable[str]) -> str | None:
    """The module of SGLang that defines one of them, and what its import raises; None where there is none such."""
    names = list(architectures)
    folder = importlib.import_module(_MODELS.rstrip(".")).__path__
    for info in pkgutil.iter_modules(folder, _MODELS):
        if not info.ispkg and _defines_one(info, names):
            try:
                importlib.import_module(info.name)
            except Exception as error:
                return f"{info.name.removeprefix(_MODELS)}: {type(error).__name__}: {error}"
    return None


def _defines_one(info: Any, names: Iterable[str]) -> bool:
    text = _text(info)
    return text is not None and any(f"class {name}(" in text for name in names)


def _text(info: Any) -> str | None:
    file = Path(getattr(info.module_finder, "path", "")) / f"{info.name.rpartition('.')[2]}.py"
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None

"""Run a callback when a module has been imported, without importing it.

A launcher must not load SGLang's model runner for our sake, and a scheduler loads it only after its plugins.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

from sglang_guards.log import warn


def when_imported(name: str, callback: Callable[[], None]) -> None:
    """Call `callback` once after module `name` has executed; at once if it is loaded. Never raises into an import."""
    if name in sys.modules:
        _call(name, callback)
    else:
        sys.meta_path.insert(0, _Finder(name, callback))


def _call(name: str, callback: Callable[[], None]) -> None:
    try:
        callback()
    except Exception as error:
        warn("sglang-guards: hook after the import of %s failed: %s: %s", name, type(error).__name__, error)


def spec_with(
    name: str,
    callback: Callable[[], None],
    path: Sequence[str] | None = None,
    target: ModuleType | None = None,
) -> importlib.machinery.ModuleSpec | None:
    """The module's spec as the other finders give it, with a loader that calls `callback` after the module ran."""
    for finder in list(sys.meta_path):
        find = getattr(finder, "find_spec", None)
        spec: importlib.machinery.ModuleSpec | None = find(name, path, target) if find is not None else None
        if spec is not None:
            if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                spec.loader = _Loader(spec.loader, name, callback)
            return spec
    return None


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, callback: Callable[[], None]) -> None:
        self.name, self.callback = name, callback
        self._looking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name or self._looking:
            return None
        self._looking = True  # the other finders are asked next, this one among them
        try:
            return spec_with(fullname, self._executed, path, target)
        finally:
            self._looking = False

    def _executed(self) -> None:
        """Only now is the finder done: whoever looks for the module may not import it, and an import may fail."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        self.callback()


class _Loader(importlib.abc.Loader):
    """The real loader, followed by the callback; everything else is the real loader's."""

    def __init__(self, real: importlib.abc.Loader, name: str, callback: Callable[[], None]) -> None:
        self._real, self._name, self._callback = real, name, callback

    def __getattr__(self, attribute: str) -> object:
        return getattr(self._real, attribute)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._real
        if module.__spec__ is not None:
            module.__spec__.loader = self._real
        self._real.exec_module(module)
        _call(self._name, self._callback)

"""Modules that every build needs, imported once in the process from which the launches fork: they take seconds.

A real worker imports them after SGLang's resolution, which writes variables of the environment. So it is noted which
variables are read meanwhile: a launch whose resolution changes one of them is not for this process.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator
from typing import Any

_MODULES = (
    "sglang.srt.layers.dp_attention",
    "sglang.srt.model_executor.model_runner",
    "sglang.srt.model_loader.loader",
)
#: Only where a draft is built.
_OF_DRAFTS = ("sglang.srt.speculative.spec_utils",)


def import_modules(*, draft: bool = True) -> frozenset[str]:
    """Import them and return the names of the variables that were read."""
    with _reads() as names:
        for name in (*_MODULES, *(_OF_DRAFTS if draft else ())):
            with contextlib.suppress(Exception):  # a rank will say what is wrong with it
                importlib.import_module(name)
    return frozenset(names)


@contextlib.contextmanager
def _reads() -> Iterator[set[str]]:
    names: set[str] = set()
    kind: Any = type(os.environ)
    original = kind.__getitem__

    def getitem(self: Any, key: Any) -> Any:
        names.add(str(key))
        return original(self, key)

    kind.__getitem__ = getitem
    try:
        yield names
    finally:
        kind.__getitem__ = original

"""Stands in for SGLang's compiled CPU kernels, which SGLang 0.5.10 imports at module level; nothing here can run."""

from __future__ import annotations

from typing import NoReturn


class Absent:
    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        raise RuntimeError(f"sgl_kernel.{self.name} is a stub: the test reached a compiled kernel")


def __getattr__(name: str) -> Absent:
    if name.startswith("__"):
        raise AttributeError(name)
    return Absent(name)

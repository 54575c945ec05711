"""The patch series of the installed release, as changes of the two fused-MoE files."""

from __future__ import annotations

import functools
from pathlib import Path
from types import ModuleType

import pytest

from sglang_guards.bench import kernels

PATCHES = Path(__file__).resolve().parents[2] / "patches"


def files() -> kernels.Texts:
    """The two files with the whole series applied; skips where this release has no series."""
    import sglang

    folder = PATCHES / f"v{sglang.__version__}"
    series = sorted(folder.glob("[0-9]*.patch"))
    if not series:
        pytest.skip(f"no patch series for SGLang {sglang.__version__}")
    found = kernels.texts(kernels.root())
    for patch in series:
        found = kernels.apply_diff(found, patch.read_text(encoding="utf-8"), only_these=True)
    return found


@functools.cache
def module() -> ModuleType:
    """The patched sequence module, beside the installed one."""
    return kernels.load("series", files(), kernels.root())

"""GPU tests run where their GPUs and an installed SGLang are, and say what is missing elsewhere."""

from __future__ import annotations

import functools
import importlib.util

import pytest

_COUNTS = {"gpu": 1, "tp2": 2, "tp4": 4, "blackwell": 1}


@functools.cache
def _gpus() -> tuple[int, int]:
    """(number of visible CUDA GPUs, compute capability of the first as 90, 100, …)."""
    try:
        import torch
    except ImportError:
        return 0, 0
    if torch.version.cuda is None or not torch.cuda.is_available():
        return 0, 0
    major, minor = torch.cuda.get_device_capability(0)
    return torch.cuda.device_count(), major * 10 + minor


def _missing(markers: set[str]) -> str | None:
    needed = max((_COUNTS[m] for m in markers if m in _COUNTS), default=0)
    count, sm = _gpus()
    if needed > count:
        return f"needs {needed} CUDA GPU{'s' if needed > 1 else ''}, {count} visible"
    if needed and "blackwell" in markers and sm < 100:
        return f"needs a Blackwell GPU (SM100 or SM120), this one is SM{sm}"
    if needed:
        for package in ("sglang", "sgl_kernel"):
            if importlib.util.find_spec(package) is None:
                return f"needs an installed {package}"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        markers = {mark.name for mark in item.iter_markers()}
        reason = _missing(markers)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))

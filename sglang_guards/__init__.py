"""Guards for SGLang launches: a start-up hook and a preflight command for flag combinations that harm.

The public API is what stands in `__all__`: `check` judges a launch command and gives a `Report` of `Finding`s, or
raises `CouldNotCheck`; the start-up hook raises `LaunchRefused`. Everything else may change between releases. Names
are"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglang_guards.errors import CouldNotCheck, LaunchRefused
    from sglang_guards.preflight.launch_check import check
    from sglang_guards.report.model import Finding, Report

__version__ = "0.1.0"
__all__ = ["CouldNotCheck", "Finding", "LaunchRefused", "Report", "__version__", "check"]

_HOMES = {
    "CouldNotCheck": "sglang_guards.errors",
    "LaunchRefused": "sglang_guards.errors",
    "Finding": "sglang_guards.report.model",
    "Report": "sglang_guards.report.model",
    "check": "sglang_guards.preflight.launch_check",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

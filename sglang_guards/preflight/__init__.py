"""The preflight: a launch command, resolved by SGLang itself on simulated GPUs, and judged.

`check` is the public function; it is imported when first used, so that the worker does not load the rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglang_guards.preflight.launch_check import check

__all__ = ["check"]


def __getattr__(name: str) -> Any:
    if name == "check":
        from sglang_guards.preflight.launch_check import check

        return check
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""The `sglang.srt.plugins` entry point. SGLang calls `register` once in every process that it starts."""

from __future__ import annotations

import os

from sglang_guards.log import info, warn


def register() -> None:
    """Attach the guard. Never raises: SGLang would log the traceback and go on unguarded."""
    if os.environ.get("SGLANG_GUARDS", "").strip().lower() == "off":
        info("sglang-guards is off (SGLANG_GUARDS=off)")
        return
    try:
        from sglang_guards.hook import attach

        attach.attach()
    except Exception as error:
        warn("sglang-guards is NOT active: %s: %s", type(error).__name__, error)

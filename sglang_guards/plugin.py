"""The `sglang.srt.plugins` entry point. SGLang calls `register` once in every process that it starts."""

from __future__ import annotations

import logging
import os

logger = logging.getLogger("sglang_guards")


def register() -> None:
    """Attach the guard. Never raises: SGLang would log the traceback and go on unguarded."""
    if os.environ.get("SGLANG_GUARDS", "").strip().lower() == "off":
        logger.info("sglang-guards is off (SGLANG_GUARDS=off)")
        return
    try:
        from sglang_guards import hooks

        hooks.attach()
    except Exception as error:
        logger.warning("sglang-guards is NOT active: %s: %s", type(error).__name__, error)

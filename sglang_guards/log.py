"""Our one logger. A log handler of the operator's that fails must not stop a server for our sake."""

from __future__ import annotations

import contextlib
import logging
import sys

logger = logging.getLogger("sglang_guards")


def say(level: int, message: str, *args: object) -> None:
    """Log one line; when logging itself fails, write it to standard error, and when that fails too, nothing."""
    try:
        logger.log(level, message, *args)
    except Exception:  # noqa: BLE001 - somebody's handler; the guard must not end a server
        with contextlib.suppress(Exception):
            sys.stderr.write(f"{message % args if args else message}\n")


def warn(message: str, *args: object) -> None:
    """One WARNING line."""
    say(logging.WARNING, message, *args)


def info(message: str, *args: object) -> None:
    """One INFO line."""
    say(logging.INFO, message, *args)

"""The one exception that means: this launch could not be checked (exit code 2)."""

from __future__ import annotations


class CouldNotCheck(Exception):
    """Bad usage or a missing input. `message` is one sentence; `hint` says what to do, and may be empty."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

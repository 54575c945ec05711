"""Words of a POSIX shell: how a command is written so that it can be pasted."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


def shown(words: Sequence[str]) -> str:
    """The command as one line to paste."""
    return " ".join(_quoted(word) for word in words)


def _quoted(word: str) -> str:
    name, sign, value = word.partition("=")
    if sign and _ASSIGNMENT.match(word):
        return f"{name}={shlex.quote(value) if value else ''}"
    return shlex.quote(word)

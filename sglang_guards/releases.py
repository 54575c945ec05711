"""Which release has a flag, as far as this machine can tell: from other unpacked releases, else by likeness."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from packaging.version import InvalidVersion, Version

from sglang_guards.options import Option


def trees_root() -> Path:
    """Where unpacked releases are kept for the contract tests; most machines have none."""
    default = Path.home() / ".cache" / "sglang-guards" / "trees"
    return Path(os.environ.get("SGLANG_GUARDS_TREES") or default)


def help_with(flag: str, installed: str, table: Sequence[Option]) -> str:
    """One sentence of help about an unknown flag; empty when nothing is known."""
    return that_have(flag, installed) or _alike(flag, table)


def that_have(flag: str, installed: str) -> str:
    """Which other releases on this machine have a flag; empty when none is known to."""
    having = [str(v) for v, folder in _trees() if str(v) != installed and _knows(folder, flag)]
    if not having:
        return ""
    first, last = having[0], having[-1]
    return f"SGLang {first} has it" if first == last else f"SGLang {first} to {last} have it"


def _alike(flag: str, table: Sequence[Option]) -> str:
    names = [name for option in table for name in option.names]
    near = difflib.get_close_matches(flag, names, n=2, cutoff=0.75)
    return f"did you mean {' or '.join(near)}?" if near else ""


def _trees() -> list[tuple[Version, Path]]:
    found = []
    try:
        entries = list(trees_root().iterdir())
    except OSError:
        return []
    for entry in entries:
        try:
            found.append((Version(entry.name), entry / "sglang" / "srt"))
        except InvalidVersion:
            continue
    return sorted(found)


def _knows(srt: Path, flag: str) -> bool:
    """Whether a release declares the flag: as text, or as a field that its parser derives flags from."""
    field = re.escape(flag.removeprefix("--").replace("-", "_"))
    declared = re.compile(rf"""["']{re.escape(flag)}["']|^ {{4}}{field}\s*:""", re.MULTILINE)
    files = [srt / "server_args.py", *(srt / "arg_groups").glob("**/*.py")]
    for file in files:
        try:
            if declared.search(file.read_text(encoding="utf-8")):
                return True
        except OSError:
            continue
    return False

"""The operator's switches: the SGLANG_GUARDS* environment variables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

MODES = ("enforce", "warn", "fix", "off")


@dataclass(frozen=True)
class Settings:
    """What the environment asks for. `notes` are complaints about values that could not be used, one line each."""

    mode: str = "enforce"
    ignore: Mapping[str, str] = field(default_factory=dict)
    auto_enable: bool = True
    report_path: str | None = None
    hotfix: str | None = None
    build: bool = False
    notes: tuple[str, ...] = ()


def from_env(env: Mapping[str, str]) -> Settings:
    """Read the switches. A value that makes no sense is a note and the default; it never raises."""
    notes: list[str] = []
    mode = env.get("SGLANG_GUARDS", "").strip().lower() or "enforce"
    if mode not in MODES:
        notes.append(f"SGLANG_GUARDS={mode!r} is none of {', '.join(MODES)}; using enforce")
        mode = "enforce"
    ignore, complaints = parse_ignore(env.get("SGLANG_GUARDS_IGNORE", ""))
    notes += complaints
    auto = env.get("SGLANG_GUARDS_AUTO", "").strip().lower()
    if auto not in ("", "0", "1", "true", "false"):
        notes.append(f"SGLANG_GUARDS_AUTO={auto!r} is neither 0 nor 1; using 1")
    return Settings(
        mode=mode,
        ignore=ignore,
        auto_enable=auto not in ("0", "false"),
        report_path=env.get("SGLANG_GUARDS_REPORT") or None,
        hotfix=env.get("SGLANG_GUARDS_HOTFIX") or None,
        build=env.get("SGLANG_GUARDS_BUILD", "").strip().lower() in ("1", "true"),
        notes=tuple(notes),
    )


def parse_ignore(text: str) -> tuple[dict[str, str], list[str]]:
    """``"FMS101=reason; ARF=reason"`` -> {id or prefix: reason}, and complaints about entries without a reason.

    Several ids may share a reason (``FMS101,ARF102=why``), and a comma before ``ID=`` parts entries too.
    """
    ignore: dict[str, str] = {}
    complaints: list[str] = []
    for entry in filter(None, (part.strip() for part in _entries(text))):
        key, _, reason = (part.strip() for part in entry.partition("="))
        if not key or not reason:
            complaints.append(
                f"SGLANG_GUARDS_IGNORE entry {entry!r} has no reason and is not used; "
                "write ID=why, such as FMS101=tested"
            )
            continue
        for one in filter(None, (part.strip().upper() for part in key.split(","))):
            ignore[one] = reason
    return ignore, complaints


def _entries(text: str) -> list[str]:
    """The entries: apart at semicolons, and at a comma before ``ID=`` where the entry has its reason already."""
    found: list[str] = []
    for part in text.split(";"):
        pieces = re.split(r",(?=\s*[A-Za-z]{3}\d*\s*=)", part)
        found.append(pieces[0])
        for piece in pieces[1:]:
            if "=" in found[-1]:
                found.append(piece)
            else:
                found[-1] += f",{piece}"
    return found


def ignore_reason(ignore: Mapping[str, str], rule_id: str) -> str | None:
    """The reason given for a rule; the longest matching prefix wins. `SGL001` is SGLang's own word: never ignored."""
    keys = [key for key in ignore if rule_id.startswith(key)]
    return ignore[max(keys, key=len)] if keys and not rule_id.startswith("SGL") else None

"""What each rule says, word by word: snapshots/<RULE>.txt, so that a change of wording is seen in review."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "snapshots"


def block(name: str, release: str, findings: Iterable[Mapping[str, Any]], command: str = "") -> str:
    """The findings of one case."""
    lines = [f"== {name} · SGLang {release}"]
    lines += [f"   {command}"] if command else []
    for finding in findings:
        lines += [
            f"{finding['severity']}[{finding['id']}] {finding['message']}",
            f"  | {' '.join(finding['flags'])}",
            f"  = cause  {finding['cause']}",
            f"  = impact {finding['impact']}",
        ]
        if finding["fix"]:
            lines.append(f"  = fix    {finding['fix']['text']} ({finding['fix']['applicability']})")
        lines.append(f"  = read   {', '.join(finding['decided_by'])}")
    return "\n".join(lines) + "\n"


def held(rule: str) -> dict[str, str]:
    """The blocks of a rule's file by their first line."""
    path = HERE / f"{rule}.txt"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    blocks = [part for part in text.split("\n\n") if part.strip()]
    return {part.splitlines()[0]: part.rstrip("\n") + "\n" for part in blocks}


def write(rule: str, wanted: Iterable[str]) -> None:
    """Renew the named blocks and keep the others."""
    blocks = held(rule) | {part.splitlines()[0]: part for part in wanted}
    (HERE / f"{rule}.txt").write_text("\n".join(blocks[key] for key in sorted(blocks)), encoding="utf-8")

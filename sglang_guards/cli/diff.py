"""``sglang-guards diff A.json B.json``: what changed between two reports, for upgrades of SGLang or of a launch."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_guards import __version__, redact
from sglang_guards.errors import CouldNotCheck
from sglang_guards.report.model import SCHEMA_VERSION, Severity

_Json = Mapping[str, Any]
_NOT = "–"
#: Characters of a fact's value in the text form.
_LONGEST = 60


@dataclass(frozen=True)
class Pair:
    """One thing before and after; None where it is not there."""

    name: str
    a: _Json | None
    b: _Json | None


@dataclass(frozen=True)
class Diff:
    """What changed from report `a` to report `b`. `changed` holds findings whose severity is another one."""

    a: _Json
    b: _Json
    new: tuple[_Json, ...]
    gone: tuple[_Json, ...]
    changed: tuple[Pair, ...]
    facts: tuple[Pair, ...]
    flags: tuple[Pair, ...]

    def at_or_above(self, severity: str) -> bool:
        """Whether `b` has a finding at or above `severity` that `a` had not, or had below it."""
        limit = Severity(severity).rank
        risen = [p.b for p in self.changed if p.a and p.b and _rank(p.a) > limit]
        return any(_rank(finding) <= limit for finding in (*self.new, *filter(None, risen)))

    def to_dict(self) -> dict[str, Any]:
        """The JSON object, as `schemas/diff.json` describes it."""
        return {
            "schema_version": SCHEMA_VERSION,
            "tool": {"name": "sglang-guards", "version": __version__},
            "a": _head(self.a),
            "b": _head(self.b),
            "findings": {
                "new": list(self.new),
                "gone": list(self.gone),
                "changed": [
                    {"id": p.name, "a": p.a["severity"], "b": p.b["severity"]}
                    for p in self.changed
                    if p.a and p.b
                ],
            },
            "facts": [{"name": p.name, "a": p.a, "b": p.b} for p in self.facts],
            "flags": [{"flag": p.name, "a": p.a, "b": p.b} for p in self.flags],
        }


def run(a: str, b: str, form: str, fail_on: str) -> int:
    """Print what changed; 1 when `b` has new findings at or above `fail_on`, else 0."""
    if a == b == "-":
        raise CouldNotCheck("both reports are -, and stdin is read once", "give at least one file")
    found = compare(read(a), read(b))
    if form == "json":
        print(json.dumps(found.to_dict(), indent=2, ensure_ascii=False))
    else:
        print("\n".join(lines(found)))
    return int(fail_on != "never" and found.at_or_above(fail_on))


def read(path: str) -> dict[str, Any]:
    """A report of ``check --format json``; raises `CouldNotCheck` for anything else."""
    hint = "make it with: sglang-guards check --format json … > report.json"
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
        report = redact.tree(json.loads(text))  # whoever wrote it: nothing in it may steer a terminal
    except OSError as error:
        raise CouldNotCheck(f"{path} cannot be read: {error.strerror}", hint) from None
    except (ValueError, RecursionError) as error:
        raise CouldNotCheck(f"{path} cannot be read as a report: {error}", hint) from None
    tool = report.get("tool") if isinstance(report, dict) else None
    if not isinstance(tool, dict) or tool.get("name") != "sglang-guards":
        raise CouldNotCheck(f"{path} is not a report of sglang-guards", hint)
    if report.get("schema_version") != SCHEMA_VERSION:
        raise CouldNotCheck(
            f"{path} has schema version {report.get('schema_version')}, this is {SCHEMA_VERSION}",
            "make both reports with the same sglang-guards",
        )
    if "error" in report:
        raise CouldNotCheck(
            f"{path} holds no report, its check failed: {report['error'].get('message')}", hint
        )
    if not all(isinstance(report.get(key), kind) for key, kind in _PARTS.items()):
        raise CouldNotCheck(f"{path} is not a whole report", hint)
    return dict(report)


_PARTS = {"findings": list, "flags": list, "launch": dict, "target": dict, "verdict": str}


def compare(a: _Json, b: _Json) -> Diff:
    """What changed from report `a` to report `b`."""
    before, after = _by_key(a["findings"]), _by_key(b["findings"])
    new, gone, changed = [], [], []
    for key in dict.fromkeys((*before, *after)):
        left, right = list(before.get(key, ())), list(after.get(key, ()))
        for one in list(left):  # what stayed as it was is no news
            same = next((other for other in right if other["severity"] == one["severity"]), None)
            if same is not None:
                left.remove(one)
                right.remove(same)
        changed += [Pair(one["id"], one, other) for one, other in zip(left, right, strict=False)]
        gone += left[len(right) :]
        new += right[len(left) :]
    return Diff(
        a,
        b,
        new=tuple(sorted(new, key=_rank)),
        gone=tuple(sorted(gone, key=_rank)),
        changed=tuple(changed),
        facts=_pairs(a["launch"].get("facts", {}), b["launch"].get("facts", {})),
        flags=_pairs({row["flag"]: row for row in a["flags"]}, {row["flag"]: row for row in b["flags"]}),
    )


def _by_key(findings: Sequence[_Json]) -> dict[tuple[str, str], list[_Json]]:
    """Findings by rule; SGLang's own refusals by their reason too, since SGL001 stands for all of them."""
    found: dict[tuple[str, str], list[_Json]] = {}
    for finding in findings:
        key = finding["id"], finding["message"] if finding["id"].startswith("SGL") else ""
        found.setdefault(key, []).append(finding)
    return found


def _pairs(a: Mapping[str, _Json], b: Mapping[str, _Json]) -> tuple[Pair, ...]:
    names = sorted({*a, *b})
    return tuple(Pair(name, a.get(name), b.get(name)) for name in names if a.get(name) != b.get(name))


def _rank(finding: _Json) -> int:
    return Severity(finding["severity"]).rank


def _head(report: _Json) -> dict[str, Any]:
    return {"sglang": str(report["target"].get("sglang", "unknown")), "verdict": report["verdict"]}


def lines(found: Diff) -> Iterator[str]:
    """The text form; the last line is the verdict."""
    a, b = _head(found.a), _head(found.b)
    yield f"A  SGLang {a['sglang']}  {a['verdict'].upper()}"
    yield f"B  SGLang {b['sglang']}  {b['verdict'].upper()}"
    for title, part in (("findings", _findings(found)), ("facts", _facts(found)), ("flags", _flags(found))):
        shown = list(part)
        if shown:
            yield ""
            yield title
            yield from shown
    yield ""
    yield _verdict(found)


def _findings(found: Diff) -> Iterator[str]:
    for finding in found.new:
        yield f"  + {finding['severity']}[{finding['id']}] {finding['message']}"
        if finding["cause"]:
            yield f"      cause {finding['cause']}"
        if finding["fix"]:
            yield f"      fix   {finding['fix']['text']}"
    for pair in found.changed:
        if pair.a and pair.b:
            yield f"  ~ [{pair.name}] {pair.a['severity']} -> {pair.b['severity']}: {pair.b['message']}"
    for finding in found.gone:
        yield f"  - {finding['severity']}[{finding['id']}] {finding['message']}"


def _facts(found: Diff) -> Iterator[str]:
    width = max((len(pair.name) for pair in found.facts), default=0)
    for pair in found.facts:
        a, b = _texts(pair)
        yield f"  {pair.name:<{width}}  {a} -> {b}"


def _texts(pair: Pair) -> tuple[str, str]:
    """Both values with their origins; of long ones only the place where they part."""
    values = [
        None if fact is None else json.dumps(fact["value"], ensure_ascii=False) for fact in (pair.a, pair.b)
    ]
    pairs = enumerate(zip(values[0] or "", values[1] or "", strict=False))
    alike = next((at for at, (left, right) in pairs if left != right), 0)
    shown = []
    for fact, value in zip((pair.a, pair.b), values, strict=True):
        shown.append(_NOT if fact is None or value is None else f"{_cut(value, alike)} ({fact['from']})")
    return shown[0], shown[1]


def _cut(value: str, at: int) -> str:
    """`value` around position `at` when it is too long for a line."""
    if len(value) <= _LONGEST:
        return value
    start = max(0, min(at - _LONGEST // 3, len(value) - _LONGEST))
    stop = start + _LONGEST
    return f"{'…' if start else ''}{value[start:stop]}{'…' if stop < len(value) else ''}"


def _flags(found: Diff) -> Iterator[str]:
    for pair in found.flags:
        a, b = pair.a or {}, pair.b or {}
        if a.get("effect") != b.get("effect") or a.get("requested") != b.get("requested"):
            row = b or a
            yield f"  {pair.name}  {_row(a)} -> {_row(b)}: {row['why']}"


def _row(row: _Json) -> str:
    return f"{row['effect']} (requested {row['requested']})" if row else _NOT


def _verdict(found: Diff) -> str:
    parts = [
        (len(found.new), "new"),
        (len(found.changed), "of another severity"),
        (len(found.gone), "gone"),
    ]
    said = ", ".join(f"{count} {what}" for count, what in parts if count)
    a, b = (_head(report)["verdict"].upper() for report in (found.a, found.b))
    verdict = a if a == b else f"{a} -> {b}"
    return f"{verdict} · findings: {said or 'none came, none went'}"

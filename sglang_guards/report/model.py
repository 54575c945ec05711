"""What a check says: findings, fixes, verdict rows, and the report that holds them."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SCHEMA_VERSION = 2
#: Where `explain` pages live on the web.
DOCS_URL = "https://sglang-guards.github.io/sglang-guards/rules"


class Severity(str, enum.Enum):
    """How bad it is for the operator: an error refuses the launch, a warning and an info do not."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"

    @property
    def rank(self) -> int:
        """0 for the worst, so that sorting puts errors first."""
        return ("error", "warning", "info").index(self.value)


@dataclass(frozen=True)
class Evidence:
    """Why a rule may say what it says. `kind` is source, report or measured; `ref` is a file:line, link or result."""

    kind: str
    ref: str


@dataclass(frozen=True)
class Fix:
    """A change of server args that settles a finding.

    `set` maps fields of ServerArgs to their new value; None means that the flag is removed (the field's default).
    `text` is the sentence that the operator reads. `safe` fixes keep what the launch computes; `display` fixes change
    more than one thing that the operator may care about, so they are only printed.
    """

    text: str
    set: Mapping[str, Any] = field(default_factory=dict)
    applicability: str = "safe"


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong (or worth knowing) about a launch.

    `message` says what conflicts, `flags` are the flags as typed, `cause` is the deciding fact, `impact` says what
    happens and when, `fix` what to change.
    """

    id: str
    name: str
    severity: Severity
    message: str
    flags: tuple[str, ...] = ()
    cause: str = ""
    impact: str = ""
    fix: Fix | None = None
    evidence: tuple[Evidence, ...] = ()
    #: The rule's one-line summary and its own severity, whatever this finding says; formats describe the rule by them.
    summary: str = ""
    rule_severity: Severity | None = None
    #: Names of the facts that the rule read on its way to this finding.
    decided_by: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        """The rule's page."""
        return f"{DOCS_URL}/{self.id}/"

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, as the schema in `schemas/report.json` describes it."""
        return {
            "id": self.id,
            "name": self.name,
            "severity": self.severity.value,
            "message": self.message,
            "flags": list(self.flags),
            "cause": self.cause,
            "impact": self.impact,
            "fix": None
            if self.fix is None
            else {"applicability": self.fix.applicability, "set": dict(self.fix.set), "text": self.fix.text},
            "evidence": [{"kind": e.kind, "ref": e.ref} for e in self.evidence],
            "decided_by": list(self.decided_by),
            "url": self.url,
        }


@dataclass(frozen=True)
class FlagVerdict:
    """One row of the verdict table: what was requested of a flag and what this SGLang will do with it.

    `effect` is active, ignored, off, overridden, auto-enabled, recommended or unknown; `source` is the line of the
    installed SGLang that decides it.
    """

    flag: str
    requested: str
    effect: str
    why: str
    source: str = ""


@dataclass(frozen=True)
class Skipped:
    """A rule that applies but could not be decided, and the fact that was missing."""

    id: str
    missing: str


@dataclass(frozen=True)
class Ignored:
    """A finding that the operator suppressed, with the reason given."""

    id: str
    severity: Severity
    reason: str


@dataclass(frozen=True)
class Report:
    """Everything that one check found, in the order in which it is shown (worst first)."""

    findings: tuple[Finding, ...] = ()
    passed: tuple[str, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    #: What could not be judged beside single rules, one clause each.
    unknown: tuple[str, ...] = ()
    ignored: tuple[Ignored, ...] = ()
    notes: tuple[str, ...] = ()
    flags: tuple[FlagVerdict, ...] = ()
    applied: int = 0
    known: int = 0
    target: Mapping[str, Any] = field(default_factory=dict)
    argv: tuple[str, ...] = ()
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    corrected: tuple[str, ...] | None = None
    #: The model as SGLang built it: status, reason and ranks; None where no build was tried.
    build: Mapping[str, Any] | None = None
    seconds: float = 0.0

    def count(self, severity: Severity) -> int:
        """Number of findings of one severity."""
        return sum(f.severity is severity for f in self.findings)

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that refuse the launch."""
        return tuple(f for f in self.findings if f.severity is Severity.ERROR)

    @property
    def verdict(self) -> str:
        """`fail` with an error; `unknown` when no rule could be decided at all; else `pass`."""
        if self.errors:
            return "fail"
        decided = self.passed or self.findings or self.ignored
        if not decided and (self.skipped or self.notes):
            return "unknown"
        return "pass"

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of `check --format json`."""
        from sglang_guards import __version__

        summary = {s.value: self.count(s) for s in Severity}
        summary |= {"passed": len(self.passed), "skipped": len(self.skipped), "ignored": len(self.ignored)}
        made = {
            "schema_version": SCHEMA_VERSION,
            "tool": {"name": "sglang-guards", "version": __version__},
            "target": dict(self.target),
            "launch": {"argv": list(self.argv), "facts": {k: dict(v) for k, v in sorted(self.facts.items())}},
            "verdict": self.verdict,
            "summary": summary,
            "findings": [f.to_dict() for f in self.findings],
            "flags": [vars(row) for row in self.flags],
            "skipped": [vars(s) for s in self.skipped],
            "unknown": list(self.unknown),
            "ignored": [{"id": i.id, "severity": i.severity.value, "reason": i.reason} for i in self.ignored],
            "notes": list(self.notes),
            "build": None if self.build is None else dict(self.build),
            "corrected": None if self.corrected is None else list(self.corrected),
        }
        return {key: finite(value) for key, value in made.items()}


def finite(value: Any) -> Any:
    """A value that JSON can say: NaN and the infinities as text, all else as it is."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(inner) for inner in value]
    return value

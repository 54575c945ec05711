"""Run every rule on one launch. A crash inside a rule is a line in the report, never an exception."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from sglang_guards.launch.facts import Launch, MissingFact
from sglang_guards.report.model import Finding, Ignored, Report, Severity, Skipped
from sglang_guards.rules import Rule, all_rules
from sglang_guards.settings import Settings, ignore_reason
from sglang_guards.source.applied_patches import applied_patches


def judge(launch: Launch, settings: Settings, rules: Sequence[Rule] | None = None) -> Report:
    """Findings of all rules that apply, worst first; suppressed ones and missing facts are listed apart.

    In `warn` mode errors become warnings. Never raises for a fault inside a rule.
    """
    findings: list[Finding] = []
    passed: list[str] = []
    skipped: list[Skipped] = []
    ignored: list[Ignored] = []
    notes: list[str] = list(settings.notes)
    known = rules if rules is not None else all_rules(notes)
    applied = 0
    for rule in known:
        try:
            if not rule.applies(launch):
                continue
            applied += 1
            found = list(rule.check(launch))
        except MissingFact as missing:
            skipped.append(Skipped(rule.id, missing.name))
            continue
        except Exception as error:  # a rule's fault must not become the server's fault
            notes.append(f"{rule.id} could not be decided: {type(error).__name__}: {error}")
            continue
        if not found:
            passed.append(rule.id)
        reason = ignore_reason(settings.ignore, rule.id)
        for finding in found:
            if reason is not None:
                ignored.append(Ignored(finding.id, finding.severity, reason))
            else:
                findings.append(_in_mode(finding, settings.mode))
    findings.sort(key=lambda f: (f.severity.rank, f.id))
    return Report(
        findings=tuple(findings),
        passed=tuple(passed),
        skipped=tuple(skipped),
        ignored=tuple(ignored),
        notes=tuple(notes),
        applied=applied,
        known=len(known),
        argv=launch.argv,
        facts=_shown_facts(launch),
        target=_target(launch),
    )


def _in_mode(finding: Finding, mode: str) -> Finding:
    if mode == "warn" and finding.severity is Severity.ERROR:
        return dataclasses.replace(finding, severity=Severity.WARNING)
    return finding


def _target(launch: Launch) -> Mapping[str, object]:
    source = launch.source
    if source is None:
        return {"sglang": "unknown", "path": None, "dev_build": False, "patches": []}
    return {
        "sglang": source.version,
        "path": str(source.root),
        "dev_build": "dev" in source.version or "+" in source.version,
        "patches": list(applied_patches(source)),
    }


def _shown_facts(launch: Launch) -> Mapping[str, Mapping[str, object]]:
    """The facts that decide, small enough to print: everything but raw configs and unset args."""
    shown = {}
    for name, fact in launch.facts.items():
        if name.endswith((".config", ".quant_config")):
            continue
        if name.startswith("args.") and fact.origin == "default":
            continue
        shown[name] = {"value": fact.value, "from": fact.origin}
    return shown

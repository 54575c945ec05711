"""Run every rule on one launch. A crash inside a rule is a line in the report, never an exception."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from sglang_guards.launch.facts import Launch, MissingFact
from sglang_guards.launch.recording import RecordingLaunch
from sglang_guards.report.model import Finding, Ignored, Report, Severity, Skipped
from sglang_guards.rules import Rule, all_rules
from sglang_guards.settings import Settings, ignore_reason
from sglang_guards.source import distribution
from sglang_guards.source.applied_patches import applied_patches
from sglang_guards.time_limit import within

#: Seconds for all rules of one launch together; they take milliseconds.
RULES_S = 30.0


def judge(
    launch: Launch,
    settings: Settings,
    rules: Sequence[Rule] | None = None,
    seconds: float = RULES_S,
    *,
    name_patches: bool = True,
) -> Report:
    """Findings of all rules that apply, worst first; suppressed ones and missing facts are listed apart.

    In `warn` mode errors become warnings. Never raises for a fault inside a rule; rules that are not done after
    `seconds` are stopped, and named. Without `name_patches` the report does not say which of our patches the tree
    carries: reading them takes a third of a start-up's time.
    """
    findings: list[Finding] = []
    passed: list[str] = []
    skipped: list[Skipped] = []
    ignored: list[Ignored] = []
    notes: list[str] = list(settings.notes)
    known = rules if rules is not None else all_rules(notes)
    notes += unknown_ignores(settings.ignore, known)
    refused = "refusal.message" in launch.facts
    applied = 0
    recording = RecordingLaunch(launch)
    waiting = list(known)

    def run() -> None:
        nonlocal applied
        while waiting:
            rule = waiting[0]
            recording.restart()
            found: Sequence[Finding] | None = None
            try:
                if refused and not rule.of_refused:
                    skipped.append(Skipped(rule.id, "resolved server args"))
                else:
                    found = rule.findings(recording)
                    applied += found is not None
            except MissingFact as missing:
                applied += 1
                skipped.append(Skipped(rule.id, missing.name))
            except Exception as error:  # noqa: BLE001 - a rule's fault must not become the server's fault
                applied += 1
                notes.append(f"{rule.id} could not be decided: {type(error).__name__}: {error}")
            if found is not None and not found:
                passed.append(rule.id)
            reason = ignore_reason(settings.ignore, rule.id)
            for finding in found or ():
                if reason is not None:
                    ignored.append(Ignored(finding.id, finding.severity, reason))
                else:
                    findings.append(_in_mode(finding, settings.mode, tuple(recording.read)))
            del waiting[0]

    if not within(seconds, run):
        late = [rule.id for rule in waiting]
        notes.append(f"could not judge {', '.join(late)}: the rules were stopped after {seconds:g} s")
        skipped += [Skipped(rule_id, "time") for rule_id in late]
    findings.sort(key=lambda f: (f.severity.rank, f.id))
    return Report(
        findings=tuple(findings),
        passed=tuple(passed),
        skipped=tuple(skipped),
        ignored=tuple(ignored),
        unknown=() if refused else _unknown(launch),
        notes=tuple(notes),
        applied=applied,
        known=len(known),
        argv=launch.argv,
        facts=_shown_facts(launch),
        target=_target(launch, name_patches=name_patches),
    )


def _unknown(launch: Launch) -> tuple[str, ...]:
    """A runner that is not known leaves rules without a word that ask for one by name."""
    models = (("target", "the MoE layers"), ("draft", "the draft's MoE layers"))
    return tuple(
        f"what depends on the runner of {whose}: which one they get is not known"
        for name, whose in models
        if launch.get(f"{name}.exists") is True and launch.get(f"{name}.runner") is None
    )


def unknown_ignores(ignore: Mapping[str, str], known: Sequence[Rule]) -> list[str]:
    """A line for every key of SGLANG_GUARDS_IGNORE that selects no rule."""
    ids = [rule.id for rule in known]
    names = {rule.name.upper(): rule.id for rule in known}
    lines = []
    for key in ignore:
        if key.startswith("SGL"):
            lines.append(f"SGLANG_GUARDS_IGNORE: {key} is SGLang's own refusal and cannot be ignored")
        elif not any(rule_id.startswith(key) for rule_id in ids):
            instead = names.get(key)
            hint = f"; write its id, {instead}" if instead else "; sglang-guards rules lists them"
            lines.append(f"SGLANG_GUARDS_IGNORE: {key} is no id and no family of rules{hint}")
    return lines


def _in_mode(finding: Finding, mode: str, read: tuple[str, ...]) -> Finding:
    severity = finding.severity
    if mode == "warn" and severity is Severity.ERROR:
        severity = Severity.WARNING
    return dataclasses.replace(finding, severity=severity, decided_by=read)


def _target(launch: Launch, *, name_patches: bool) -> Mapping[str, object]:
    source = launch.source
    if source is None:
        return {"sglang": "unknown", "path": None, "dev_build": False, "patches": []}
    owner = distribution.owner(source.root)
    return {
        "distribution": None if owner is None else str(owner),
        "sglang": source.version,
        "path": str(source.root),
        "dev_build": "dev" in source.version or "+" in source.version,
        "patches": list(applied_patches(source)) if name_patches else [],
    }


def _shown_facts(launch: Launch) -> Mapping[str, Mapping[str, object]]:
    """The facts that decide, small enough to print: everything but raw configs and unset args."""
    shown = {}
    for name, fact in launch.facts.items():
        if name.endswith((".config", ".quant_config")) or name == "build.ranks":
            continue
        if name.startswith(("typed.", "without.")):
            continue
        if name.startswith("args.") and fact.origin == "default":
            continue
        shown[name] = {"value": fact.value, "from": fact.origin}
    return shown

"""A report as SARIF 2.1.0 (OASIS), for code scanning and other viewers."""

from __future__ import annotations

import json
import os
from typing import Any
from urllib.parse import quote

from sglang_guards import __version__, shell
from sglang_guards.report.github import place
from sglang_guards.report.model import DOCS_URL, Finding, Report, Severity

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json"
_HOME = DOCS_URL.removesuffix("rules")
_LEVEL = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def render(report: Report, at: str = "") -> str:
    """One SARIF log with one run. `at` is where the launch is written, ``FILE`` or ``FILE:LINE``.

    A finding's logical locations are the flags as typed. GitHub's code scanning shows only results with a file, so
    give `at` there.
    """
    ids = sorted({finding.id for finding in report.findings})
    rules = [_rule(next(f for f in report.findings if f.id == rule_id)) for rule_id in ids]
    results = [_result(finding, ids.index(finding.id), at) for finding in report.findings]
    invocation = {
        "executionSuccessful": True,
        "toolExecutionNotifications": [_notice(n) for n in report.notes],
    }
    properties = {
        "verdict": report.verdict,
        "sglang": str(report.target.get("sglang", "unknown")),
        "launch": shell.shown(report.argv),
        "corrected": None if report.corrected is None else shell.shown(report.corrected),
        "skipped": [s.id for s in report.skipped],
        "ignored": {i.id: i.reason for i in report.ignored},
    }
    return _log(rules, results, invocation, properties)


def failure(message: str, hint: str) -> str:
    """The log of exit code 2: a run without results that did not succeed."""
    notice = _notice(f"{message}\nhint: {hint}" if hint else message) | {"level": "error"}
    return _log([], [], {"executionSuccessful": False, "toolExecutionNotifications": [notice]}, {})


def _log(
    rules: list[dict[str, Any]],
    results: list[dict[str, Any]],
    invocation: dict[str, Any],
    properties: dict[str, Any],
) -> str:
    driver = {"name": "sglang-guards", "version": __version__, "informationUri": _HOME, "rules": rules}
    run: dict[str, Any] = {
        "tool": {"driver": driver},
        "automationDetails": {"id": "sglang-guards/"},
        "columnKind": "unicodeCodePoints",
        "invocations": [invocation],
        "results": results,
    }
    if properties:
        run["properties"] = properties
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(log, indent=2, ensure_ascii=False, default=str)


def _rule(finding: Finding) -> dict[str, Any]:
    summary = finding.summary or finding.message
    return {
        "id": finding.id,
        "name": finding.name,
        "shortDescription": {"text": f"{summary[:1].upper()}{summary[1:]}."},
        "helpUri": finding.url,
        "defaultConfiguration": {"level": _LEVEL[finding.rule_severity or finding.severity]},
    }


def _result(finding: Finding, index: int, at: str) -> dict[str, Any]:
    parts = [
        finding.message,
        finding.cause,
        finding.impact,
        f"fix: {finding.fix.text}" if finding.fix else "",
    ]
    location: dict[str, Any] = {}
    if finding.flags:
        location["logicalLocations"] = [
            {"fullyQualifiedName": flag, "kind": "parameter"} for flag in finding.flags
        ]
    if at:
        location["physicalLocation"] = _physical(at)
    return {
        "ruleId": finding.id,
        "ruleIndex": index,
        "level": _LEVEL[finding.severity],
        "message": {"text": "\n".join(part for part in parts if part)},
        "locations": [location] if location else [],
        "partialFingerprints": {"ruleAndFlags/v1": f"{finding.id}:{' '.join(finding.flags)}"},
        "properties": {"evidence": [f"{e.kind}: {e.ref}" for e in finding.evidence]},
    }


def _physical(at: str) -> dict[str, Any]:
    file, line = place(at)
    return {
        "artifactLocation": {"uri": quote(os.fsencode(file.replace("\\", "/"))), "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": line or 1},
    }


def _notice(line: str) -> dict[str, Any]:
    return {"level": "note", "message": {"text": line}}

"""--format sarif against the standard's schema (tests/unit/schemas/README.md says where it comes from)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from sglang_guards.report.model import Finding, Severity
from sglang_guards.report.sarif import failure, render
from tests.unit.reports import ERROR, INFO, WARNING, report

SCHEMA = json.loads((Path(__file__).parent / "schemas" / "sarif-2.1.0.json").read_text(encoding="utf-8"))
REFUSED = Finding("SGL001", "sglang-refuses", Severity.ERROR, "SGLang refuses this launch: no")


def valid(text: str) -> dict[str, Any]:
    log = json.loads(text)
    jsonschema.Draft202012Validator(SCHEMA, format_checker=jsonschema.FormatChecker()).validate(log)
    run: dict[str, Any] = log["runs"][0]
    return run


@pytest.mark.parametrize("at", ["", "deploy/my launch.sh", "deploy/launch.sh:7"])
@pytest.mark.parametrize("findings", [(), (ERROR,), (ERROR, ERROR, WARNING, INFO), (REFUSED,)])
def test_valid(findings: tuple[Finding, ...], at: str) -> None:
    run = valid(render(report(*findings, corrected=("a", "b")), at))
    rules = run["tool"]["driver"]["rules"]
    assert len(rules) == len({finding.id for finding in findings})
    for result, finding in zip(run["results"], findings, strict=True):
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"] == finding.id
    assert run["invocations"][0]["executionSuccessful"]
    assert run["properties"]["corrected"] == "a b"


def test_the_schema_has_teeth() -> None:
    log = json.loads(render(report(ERROR)))
    log["runs"][0]["results"][0]["level"] = "info"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(SCHEMA).validate(log)


def test_places() -> None:
    location = valid(render(report(ERROR), "deploy/my launch.sh:7"))["results"][0]["locations"][0]
    assert location["physicalLocation"]["artifactLocation"]["uri"] == "deploy/my%20launch.sh"
    assert location["physicalLocation"]["region"] == {"startLine": 7}
    assert [x["fullyQualifiedName"] for x in location["logicalLocations"]] == list(ERROR.flags)
    assert valid(render(report(INFO)))["results"][0]["locations"] == []


def test_trouble_is_a_run_that_did_not_succeed() -> None:
    run = valid(failure("no GPU is visible", "name it"))
    assert not run["invocations"][0]["executionSuccessful"]
    assert run["results"] == []
    assert "no GPU is visible" in run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"]

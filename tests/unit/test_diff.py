"""sglang-guards diff, through the command line."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from sglang_guards.cli.main import main
from sglang_guards.report.model import Finding, FlagVerdict, Report, Severity
from tests.unit.reports import ERROR, INFO, WARNING, report

SCHEMA = json.loads((resources.files("sglang_guards") / "schemas" / "diff.json").read_text(encoding="utf-8"))
REFUSAL = Finding("SGL001", "sglang-refuses", Severity.ERROR, "SGLang refuses this launch: one reason")
OTHER = replace(REFUSAL, message="SGLang refuses this launch: another reason")
AFTER = {"target": {"sglang": "0.5.23", "path": "/y", "dev_build": False}}


def diff(tmp_path: Path, a: Report, b: Report, *options: str) -> int:
    for name, made in (("a", a), ("b", b)):
        (tmp_path / name).write_text(json.dumps(made.to_dict()), encoding="utf-8")
    return main(["diff", *options, str(tmp_path / "a"), str(tmp_path / "b")])


def as_json(tmp_path: Path, a: Report, b: Report, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    diff(tmp_path, a, b, "--format", "json")
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator(SCHEMA).validate(found)
    return found


def test_what_came_went_and_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    milder = replace(WARNING, severity=Severity.INFO)
    row = FlagVerdict("--ep-size", "4", "ignored", "no experts", "server_args.py:2")
    b = report(milder, INFO, flags=(row,), facts={"args.tp_size": {"value": 8, "from": "default"}}, **AFTER)
    found = as_json(tmp_path, report(ERROR, WARNING), b, capsys)
    assert [f["id"] for f in found["findings"]["new"]] == ["FMS303"]
    assert [f["id"] for f in found["findings"]["gone"]] == ["FMS101"]
    assert found["findings"]["changed"] == [{"id": "FMS301", "a": "warning", "b": "info"}]
    assert [fact["name"] for fact in found["facts"]] == ["args.ep_size", "args.tp_size"]
    assert found["flags"][0]["b"]["effect"] == "ignored"
    assert (found["a"], found["b"]) == (
        {"sglang": "0.5.15", "verdict": "fail"},
        {"sglang": "0.5.23", "verdict": "pass"},
    )
    diff(tmp_path, report(ERROR, WARNING), b)
    text = capsys.readouterr().out
    assert "- error[FMS101]" in text
    assert "~ [FMS301] warning -> info" in text
    assert "args.ep_size  4 (given) -> –" in text
    assert "--ep-size  active (requested 4) -> ignored (requested 4): no experts" in text
    assert text.splitlines()[-1] == "FAIL -> PASS · findings: 1 new, 1 of another severity, 1 gone"


@pytest.mark.parametrize(
    ("a", "b", "fail_on", "code"),
    [
        ((), (), "error", 0),
        ((), (ERROR,), "error", 1),
        ((), (ERROR,), "never", 0),
        ((ERROR,), (ERROR,), "info", 0),
        ((ERROR,), (ERROR, ERROR), "error", 1),
        ((ERROR,), (), "error", 0),
        ((), (WARNING,), "error", 0),
        ((), (WARNING,), "warning", 1),
        ((WARNING,), (replace(WARNING, severity=Severity.ERROR),), "error", 1),
        ((WARNING,), (replace(WARNING, severity=Severity.ERROR),), "warning", 0),
        ((REFUSAL,), (OTHER,), "error", 1),
    ],
)
def test_exit_code(
    a: tuple[Finding, ...], b: tuple[Finding, ...], fail_on: str, code: int, tmp_path: Path
) -> None:
    assert diff(tmp_path, report(*a), report(*b), "--fail-on", fail_on) == code


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "cannot be read as a report"),
        ("[]", "is not a report"),
        ('{"tool": {"name": "sglang-guards"}, "schema_version": 3}', "schema version 3"),
        ('{"tool": {"name": "sglang-guards"}, "schema_version": 2}', "not a whole report"),
        (
            '{"tool": {"name": "sglang-guards"}, "schema_version": 2, "error": {"message": "no GPU"}}',
            "no GPU",
        ),
        ('{"tool": 5}', "is not a report"),
    ],
)
def test_what_is_no_report(text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a").write_text(text, encoding="utf-8")
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "missing")]) == 2
    assert said in capsys.readouterr().err


def test_stdin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text(json.dumps(report().to_dict()), encoding="utf-8")
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(report(ERROR).to_dict())))
    assert main(["diff", str(tmp_path / "a"), "-"]) == 1
    assert main(["diff", "-", "-"]) == 2


def test_long_values_show_where_they_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = "x" * 300 + "one" + "y" * 300, "x" * 300 + "two" + "y" * 300
    facts = [{"args.cuda_graph_config": {"value": value, "from": "resolved"}} for value in (a, b)]
    diff(tmp_path, report(facts=facts[0]), report(facts=facts[1]))
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "cuda_graph_config" in line]
    assert "xxxoneyyy" in line
    assert "xxxtwoyyy" in line
    assert len(line) < 220


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_report_cannot_steer_the_terminal(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = replace(ERROR, message="x\x1b[2J\x9b1m\u202ey")
    fact = {"model.architecture": {"value": "Q\x1b]0;t\x07", "from": "config"}}
    diff(tmp_path, report(), report(evil, facts=fact), "--format", form)
    shown = "".join(capsys.readouterr())
    assert "FMS101" in shown
    assert [c for c in shown if c != "\n" and (ord(c) < 32 or 127 <= ord(c) < 160 or c == "\u202e")] == []

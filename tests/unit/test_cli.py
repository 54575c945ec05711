"""The command line without SGLang: usage, exit codes, JSON at exit code 2, and the text of a report."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from typing import Any

import pytest
from rich.console import Console

from sglang_guards.cli import main
from sglang_guards.report import text
from sglang_guards.report.model import Finding, Fix, Report, Severity, Skipped
from sglang_guards.rules import all_rules


def finding(severity: Severity, id: str = "FMS101") -> Finding:
    return Finding(
        id,
        "name",
        severity,
        "it breaks " * 20,
        ("--flag", "--ep 4"),
        "the fact " * 20,
        "later",
        Fix("remove --flag"),
    )


def shown(report: Report, width: int, *, verbose: bool = False) -> list[str]:
    out = io.StringIO()
    text.text(report, Console(file=out, width=width, markup=False, highlight=False), verbose=verbose)
    return out.getvalue().splitlines()


@pytest.mark.parametrize(
    ("severity", "fail_on", "code"),
    [
        (Severity.ERROR, "error", 1),
        (Severity.ERROR, "never", 0),
        (Severity.WARNING, "error", 0),
        (Severity.WARNING, "warning", 1),
        (Severity.INFO, "warning", 0),
        (Severity.INFO, "info", 1),
    ],
)
def test_exit_codes(severity: Severity, fail_on: str, code: int) -> None:
    assert main.exit_code(Report(findings=(finding(severity),)), fail_on) == code


def test_strict_counts_skipped_rules_unless_never() -> None:
    report = Report(skipped=(Skipped("FMS101", "model.top_k"),))
    assert main.exit_code(report) == 0
    assert main.exit_code(report, strict=True) == 1
    assert main.exit_code(report, "never", strict=True) == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["check"], "launch command is empty"),
        (["check", "--gpu", "4xH100", "--"], "launch command is empty"),
        (["check", "--gpu", "4xFOO", "--", "sglang", "serve"], "unknown GPU 'FOO'"),
        (["check", "--", "vllm", "serve"], "not a launch of SGLang"),
        (["check", "--format", "xml", "--", "sglang", "serve"], "--format"),
        (["check", "--nope", "--", "sglang", "serve"], "--nope"),
        (
            ["check", "--gpu", "4xH100", "--model-config", "/nowhere", "--", "sglang", "serve"],
            "/nowhere does not exist",
        ),
        (["check", "sglang", "serve", "--", "more"], "a part of the launch stands before --"),
        (["check", "--", "sglang", "serve", "x", "--gpu", "8xH200"], "--gpu stands behind the launch"),
        (["check", "--", "sglang serve x", "--format", "json"], "--format stands behind the launch"),
        (["check", "--", "sglang serve x", "more"], "the launch is one text in quotes"),
        (["check", "--launch-file", "/no/such.sh"], "the launch file /no/such.sh cannot be read"),
        (["explain", "FMS999"], "there is no rule 'FMS999'"),
        (["explain"], "ID"),
        (["rules", "--", "sglang"], "takes no launch command"),
        (["frobnicate"], "frobnicate"),
    ],
)
def test_bad_usage_is_exit_code_2(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert says in err
    assert "Traceback" not in err


def test_bad_usage_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["check", "--format", "json", "--", "ls"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["message"] == "'ls' is not a launch of SGLang"
    assert error["hint"]


def test_rules_and_every_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["rules", "--format", "json"]) == 0
    listed = [row["id"] for row in json.loads(capsys.readouterr().out)]
    assert listed == [rule.id for rule in all_rules()]
    for rule_id in (*listed, "sgl001", "fms101"):
        assert main.main(["explain", rule_id]) == 0
        assert "## What it checks" in capsys.readouterr().out


@pytest.mark.parametrize("width", [20, 60, 80, 110, 200])
def test_no_line_but_the_command_is_wider_than_the_terminal(width: int) -> None:
    report = Report(
        findings=(finding(Severity.ERROR), finding(Severity.INFO, "FMS303")), corrected=("x" * 300,)
    )
    lines = shown(report, width)
    assert max(len(line) for line in lines[1:-1]) <= max(width, 62)
    assert lines[-1] == "  " + "x" * 300
    assert lines[-3].startswith("FAIL  1 error, 1 info")


def test_the_refusal_ends_with_the_verdict_and_has_every_error() -> None:
    report = Report(
        findings=(finding(Severity.ERROR), finding(Severity.ERROR, "ARF101"), finding(Severity.WARNING, "X"))
    )
    lines = text.refusal(report).splitlines()
    assert lines[-1].startswith("FAIL  2 errors, 1 warning")
    assert [line.split()[0] for line in lines if "[" in line[:10]] == ["error[FMS101]", "error[ARF101]"]
    assert "\x1b" not in "".join(lines)


def test_log_lines_are_single_lines() -> None:
    lines = text.log_lines(Report(findings=(finding(Severity.WARNING),), notes=("a note",)))
    assert len(lines) == 2
    assert all("\n" not in line for line in lines)


@pytest.mark.parametrize("columns", ["0", "-1", "x", "1", "99999"])
def test_an_odd_width_of_the_terminal_hides_nothing(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert main.main(["explain", "FMS101"]) == 0
    assert "## What it checks" in capsys.readouterr().out
    text.text(Report(findings=(finding(Severity.ERROR),)), text.console())
    assert "FAIL  1 error" in capsys.readouterr().out


def test_json_says_no_number_that_is_none() -> None:
    facts: dict[str, dict[str, Any]] = {
        "args.mem_fraction_static": {"value": float("nan"), "from": "given"},
        "x": {"value": [float("-inf")]},
    }
    made = json.loads(text.to_json(Report(facts=facts)), parse_constant=pytest.fail)
    assert made["launch"]["facts"]["args.mem_fraction_static"]["value"] == "nan"
    assert made["launch"]["facts"]["x"]["value"] == ["-inf"]


@pytest.mark.parametrize("redirect", [">/dev/full", ">&-"])
def test_a_standard_output_that_cannot_be_written_is_one_line(redirect: str) -> None:
    command = f"{sys.executable} -m sglang_guards rules --format json {redirect}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "standard output cannot be written" in done.stderr

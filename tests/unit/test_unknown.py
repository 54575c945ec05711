"""What could not be judged is said, and the exit code can go by it."""

from __future__ import annotations

import pytest

from sglang_guards.cli.main import exit_code
from sglang_guards.report import unknown
from sglang_guards.report.model import FlagVerdict, Report, Skipped
from sglang_guards.report.text import log_lines
from tests.unit.reports import ERROR

ARGV = ("python", "-m", "sglang.launch_server", "--ep-size=4")


def row(effect: str, flag: str = "--ep-size") -> FlagVerdict:
    return FlagVerdict(flag, "4", effect, "why")


@pytest.mark.parametrize(
    ("report", "code"),
    [
        (Report(passed=("FMS101",)), 0),
        (Report(skipped=(Skipped("FMS104", "model.top_k"),)), 1),
        (Report(unknown=("what depends on the runner",)), 1),
        (Report(argv=ARGV, flags=(row("unknown"),)), 1),
        (Report(argv=ARGV, flags=(row("active"),)), 0),
        (Report(argv=ARGV, flags=(row("unknown", "--tp-size"),)), 0),
        (Report(findings=(ERROR,)), 1),
    ],
)
def test_fail_on_unknown(report: Report, code: int) -> None:
    assert exit_code(report, "unknown") == code
    assert exit_code(report) == int(bool(report.errors)), "by default only errors count"


def test_one_line_for_each_reason() -> None:
    skipped = (
        Skipped("FMS104", "model.top_k"),
        Skipped("RUN101", "model.top_k"),
        Skipped("RUN108", "target.runner"),
    )
    lines = unknown.lines(Report(skipped=skipped))
    assert lines == [
        "could not judge FMS104, RUN101: model.top_k not known",
        "could not judge RUN108: which runner the MoE layers get is not known",
    ]
    assert [f"sglang-guards: {line}" for line in lines] == log_lines(Report(skipped=skipped))


def test_what_only_a_build_could_judge_is_not_said_at_start_up() -> None:
    report = Report(
        skipped=(Skipped("RUN302", "build.target.fused_shared_experts"), Skipped("FMS104", "gpu.sm"))
    )
    assert unknown.lines(unknown.without_build(report)) == ["could not judge FMS104: gpu.sm not known"]
    assert "RUN302: build.target.fused_shared_experts needs the model to be built" in unknown.lines(report)[0]


def test_many_reasons_are_one_line_unless_all_are_wanted() -> None:
    report = Report(skipped=tuple(Skipped(f"RUN10{n}", f"source.probe_{n}") for n in range(5)))
    [line] = unknown.lines(report)
    assert "RUN100, RUN101, RUN102, RUN103, RUN104: 5 facts" in line
    assert len(unknown.lines(report, all_reasons=True)) == 5
    assert "does not answer probe_4" in unknown.lines(report, all_reasons=True)[4]

"""Every case that is a command: real resolution on its release, the finding, and a corrected command without error."""

from __future__ import annotations

import shlex

import pytest

from tests.rules import snapshots
from tests.rules.cases import OF_COMMANDS, Case, reports

FIRES = [case for case in OF_COMMANDS if case.fires]


@pytest.mark.parametrize("case", OF_COMMANDS, ids=lambda case: case.id)
def test_the_command(case: Case) -> None:
    report = reports(case.release)[case.id]
    assert "error" not in report, report
    found = {finding["id"] for finding in report["findings"]}
    skipped = {entry["id"] for entry in report["skipped"]}
    fires = {case.rule, *case.also_fires} if case.fires else {*case.also_fires}
    quiet = {*case.also_quiet} if case.fires else {case.rule, *case.also_quiet}
    assert fires <= found, (found, skipped, report["notes"])
    assert not found & quiet
    assert not skipped & quiet, "quiet must mean decided, not skipped"
    assert not report["notes"]


@pytest.mark.parametrize("case", FIRES, ids=lambda case: case.id)
def test_the_corrected_command_has_no_error(case: Case) -> None:
    report = reports(case.release)[case.id]
    errors = [f for f in report["findings"] if f["severity"] == "error" and f["id"] != "SGL001"]
    if errors and any(f["fix"] and f["fix"]["set"] for f in errors):
        assert report["corrected"], [f["id"] for f in errors]


@pytest.mark.parametrize("case", FIRES, ids=lambda case: case.id)
def test_the_words_are_those_of_the_snapshot(case: Case, request: pytest.FixtureRequest) -> None:
    """Of every rule that the command trips; ``--renew-snapshots`` writes them anew."""
    report = reports(case.release)[case.id]
    command = shlex.join(["sglang-guards", "check", "--gpu", case.gpu, "--", *case.command])
    for rule in (case.rule, *case.also_fires):
        name = case.name if rule == case.rule else f"{case.rule}, {case.name}"
        mine = [finding for finding in report["findings"] if finding["id"] == rule]
        said = snapshots.block(name, case.release, mine, command)
        if report["corrected"]:
            said += f"  = corrected {shlex.join(report['corrected'])}\n"
        if request.config.getoption("--renew-snapshots"):
            snapshots.write(rule, [said])
        assert snapshots.held(rule).get(said.splitlines()[0]) == said

"""SGLang's own constructors on real releases: what they build, what they refuse, and what is said of it."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tests.build.launches import CASES, Case
from tests.launches.checks import check_all

pytestmark = pytest.mark.live


@cache
def reports(release: str) -> dict[str, dict[str, Any]]:
    """All cases of one release in one process."""
    cases = sorted((c for c in CASES if c.release == release), key=lambda c: c.gpu)
    answers = check_all(release, [case.launch() for case in cases], timeout=1500)
    return {case.name: answer for case, answer in zip(cases, answers, strict=True)}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_a_launch_is_judged_by_its_constructors(case: Case) -> None:
    report = reports(case.release)[case.name]
    assert "error" not in report, report
    build = report["build"]
    assert build["status"] == case.status, build
    rank = build["ranks"][0]
    if case.status == "refused":
        assert case.says in rank["refusal"]["message"]
        assert rank["refusal"]["when"] == case.when
        assert rank["refusal"]["where"].startswith("sglang/srt/")
    elif case.says:
        assert case.says in build["reason"]
    if case.layers is not None:
        (layers,) = rank["layers"]
        assert (layers["count"], layers["method"], layers["runner"]) == case.layers
    if case.gib is not None:
        assert rank["weights_bytes"] / 2**30 == pytest.approx(case.gib, abs=0.1)
    found = [f["id"] for f in report["findings"] if f["id"].startswith("BLD") and f["severity"] == "error"]
    assert found == ([case.finding] if case.finding else [])

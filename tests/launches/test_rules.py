"""Every fixture in rules/: a launch, the rules that must speak on it and those that must not."""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tomllib

from tests.launches.checks import check_all

HERE = Path(__file__).parent
FIXTURES = {
    path.stem: tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted(HERE.glob("rules/*.toml"))
}


@cache
def reports(release: str) -> dict[str, dict[str, Any]]:
    """Reports of all fixtures of one release, made in one process."""
    mine = {name: launch for name, launch in FIXTURES.items() if launch["release"] == release}
    launches = [{**launch, "argv": command(launch)} for launch in mine.values()]
    return dict(zip(mine, check_all(release, launches), strict=True))


def command(launch: dict[str, Any]) -> list[str]:
    return [
        "python",
        "-m",
        "sglang.launch_server",
        "--model-path",
        f"example/{launch['model']}",
        *launch["argv"],
    ]


@pytest.mark.parametrize("name", FIXTURES)
def test_fixture(name: str) -> None:
    expected = FIXTURES[name]
    report = reports(expected["release"])[name]
    assert "error" not in report, report
    found = {finding["id"] for finding in report["findings"]}
    skipped = {entry["id"] for entry in report["skipped"]}
    assert set(expected["fires"]) <= found, (found, skipped, report["notes"])
    assert not found & set(expected["quiet"])
    assert not skipped & set(expected["quiet"]), "quiet must mean decided, not skipped"
    assert not report["notes"]


@pytest.mark.parametrize("name", [name for name, launch in FIXTURES.items() if launch["fires"]])
def test_the_corrected_command_has_no_error(name: str) -> None:
    report = reports(FIXTURES[name]["release"])[name]
    errors = [f for f in report["findings"] if f["severity"] == "error" and f["id"] != "SGL001"]
    if errors and any(f["fix"] and f["fix"]["set"] for f in errors):
        assert report["corrected"], [f["id"] for f in errors]


def test_each_fused_sum_rule_has_a_fixture_that_fires_and_one_near_miss() -> None:
    from sglang_guards.rules import all_rules

    seen: dict[str, set[str]] = defaultdict(set)
    for launch in FIXTURES.values():
        for key in ("fires", "quiet"):
            for rule_id in launch[key]:
                seen[rule_id].add(key)
    for rule in all_rules():
        if rule.id.startswith("FMS"):
            assert seen[rule.id] >= {"fires", "quiet"}, rule.id

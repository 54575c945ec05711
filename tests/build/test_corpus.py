"""Public launches that are known to work: SGLang's constructors take them, on every release that accepts them."""

from __future__ import annotations

import pytest

from tests.launches.checks import MODELS, check_all
from tests.launches.corpus_cases import GOOD

#: Minutes a release: `nox -s matrix` runs it.
pytestmark = [pytest.mark.live, pytest.mark.slow]
#: Old, middle and newest: each builds all good launches that its parser takes, some minutes on two cores.
RELEASES = ("0.5.15", "0.5.19", "0.5.23")
#: Share of the resolved launches that must be built; the others say why not.
SHARE = 0.85


@pytest.mark.parametrize("release", RELEASES)
def test_no_good_launch_is_refused_by_its_constructors(release: str) -> None:
    names = sorted(
        (name for name, case in GOOD.items() if release in case["releases"]), key=lambda n: GOOD[n]["gpu"]
    )
    launches = [
        {
            **GOOD[name],
            "argv": [word.replace("{models}", str(MODELS)) for word in GOOD[name]["argv"]],
            "build": True,
        }
        for name in names
    ]
    reports = dict(zip(names, check_all(release, launches, timeout=7200), strict=True))
    builds = {name: report["build"] for name, report in reports.items() if report.get("build") is not None}
    refused = {
        name: [f["message"] for f in reports[name]["findings"] if f["id"].startswith("BLD")]
        for name in builds
        if any(f["id"].startswith("BLD") and f["severity"] == "error" for f in reports[name]["findings"])
    }
    assert not refused
    left_out = {name: build["reason"] for name, build in builds.items() if build["status"] != "built"}
    assert all(left_out.values()), left_out
    assert 1 - len(left_out) / len(builds) >= SHARE, left_out

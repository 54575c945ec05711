"""Public launches: no harm said of those that work, and the share of the reported ones that is caught."""

from __future__ import annotations

import os
from collections.abc import Iterable

import pytest

from sglang_guards.rules import all_rules
from tests.launches.corpus_cases import BAD, CORPUS, GOOD, refused, releases_of, reports, told
from tests.trees import NEWEST, RELEASES

pytestmark = pytest.mark.live

#: Releases on which CI judges good launches: all that the newest accepts; on the older ones those that the newest does
#: not list, and those whose machine the reported launches need anyway (a machine imports SGLang anew, which is what
#: takes the time). The full matrix judges all on all of them, and `test_every_good_launch_on_every_release` elsewhere.
JUDGED = ("0.5.12", "0.5.15", "0.5.23")
WHOLE = os.environ.get("SGLANG_GUARDS_MATRIX") == "all"
#: Good launches that a release does not take: an option or model that it does not know, a refusal of its own, or a
#: package that this machine lacks. Nothing is said of the others.
NOT_TAKEN: dict[str, set[str]] = {
    "0.5.12": {
        "ci-dsv4-pro-nvfp4-dep8-b200",
        "ci-mimo-v2-flash-tp4-dp2-mtp-h200",
        "pr-17634-mimo-v2-flash-tbo-deepep-h200",
        "doc-glm47-tp8-mi300x",
        "doc-qwen35-397b-bf16-nextn-h200",
    },
    "0.5.15": {
        "ci-dsv4-pro-nvfp4-dep8-b200",
        "ci-mimo-v2-flash-tp4-dp2-mtp-h200",
        "pr-17634-mimo-v2-flash-tbo-deepep-h200",
        "ci-qwen35-397b-bf16-aiter-mi325x",
        "doc-glm47-tp8-mi300x",
        "doc-qwen35-397b-fp8-eagle-mi355x",
    },
    "0.5.23": {
        "ci-dsr1-w4afp8-ep8-eagle-h20",
        "ci-dsv3-0324-deepep-tp8-h200",
        "ci-gemma4-26b-deterministic-tp2-h100",
        "ci-gpt-oss-120b-bf16-eagle3-h200",
        "ci-gpt-oss-120b-bf16-tp8-h200",
        "ci-gpt-oss-120b-mxfp4-tp4-h100",
        "ci-gpt-oss-120b-mxfp4-tp8-b200",
        "ci-mimo-v2-flash-tp4-dp2-mtp-h200",
        "pr-17634-mimo-v2-flash-tbo-deepep-h200",
        "doc-glm47-tp8-mi300x",
    },
}
#: Warnings that are right on a launch that works: the flag's own pull request, measured slower on an H200.
HINTS = {
    # read from the source (a stage's last layer leaves its sum to nobody); the lane's results are not public
    "ci-kimi-k25-tp4-pp2-h200": {"ARF103"},
    "pr-qwen3-235b-2507-tp8-fused-sum": {"FMS301"},
    # its fusion flag does nothing beside DP attention
    "use-dynamo-glm53-nvfp4-agg-b200": {"ARF201"},
    # the model, GPU, flags and draft of the report, which crashed after minutes of real traffic; the lane's runs are
    # shorter, and nothing in the source tells the two apart
    "use-ix-glm52-nvfp4-tp8-hicache-mtp-b200": {"SPC103"},
}


def batch(release: str) -> tuple[str, ...]:
    """What CI judges on one release, in one process."""
    bad = [name for name in BAD if release in releases_of(name)]
    started = {machine(name) for name in bad}
    good = [
        name
        for name, case in GOOD.items()
        if release in JUDGED
        and release in case["releases"]
        and (WHOLE or release == NEWEST or NEWEST not in case["releases"] or machine(name) in started)
    ]
    return (*good, *bad)


def machine(name: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """What a process is for: the GPUs and the environment."""
    case = CORPUS[name]
    return case["gpu"], tuple(sorted(case.get("env", {}).items()))


@pytest.mark.parametrize("release", JUDGED)
def test_no_harm_is_said_of_launches_that_work(release: str) -> None:
    judged = reports(release, batch(release))
    good = {name: report for name, report in judged.items() if name in GOOD}
    taken = sum(not refused(report) for report in good.values())
    print(
        f"SGLang {release}: {taken} working launches judged, {len(good) - taken} not taken by SGLang itself"
    )
    assert {name for name, report in good.items() if refused(report)} <= NOT_TAKEN[release]
    for name, report in good.items():
        if not refused(report):
            assert not told(report, "error"), (name, report["findings"])
            assert told(report, "warning") <= HINTS.get(name, set()), (name, report["findings"])


def _in_ci(releases: Iterable[str]) -> list[object]:
    """Those of `JUDGED` in CI; the others, a process and a minute each, are slow."""
    return [
        release if release in JUDGED else pytest.param(release, marks=pytest.mark.slow)
        for release in sorted(releases, key=RELEASES.index)
    ]


@pytest.mark.parametrize("release", _in_ci({case["release"] for case in BAD.values() if case["catches"]}))
def test_reported_launches_are_caught(release: str) -> None:
    judged = reports(release, batch(release))
    mine = {name: case for name, case in BAD.items() if case["release"] == release and case["catches"]}
    missed = {
        name: judged[name]
        for name, case in mine.items()
        if not told(judged[name], "error", "warning") & set(case["catches"])
    }
    for family in sorted({case["family"] for case in mine.values()}):
        of = [name for name, case in mine.items() if case["family"] == family]
        print(
            f"{family} on {release}: {sum(n not in missed for n in of)} of {len(of)} reported launches caught"
        )
    assert not {name: told(r, "error", "warning") or r.get("error") for name, r in missed.items()}


@pytest.mark.parametrize(
    "release", _in_ci({release for case in BAD.values() for release in case.get("quiet_on", ())})
)
def test_the_rules_are_quiet_where_it_is_repaired(release: str) -> None:
    judged = reports(release, batch(release))
    for name, case in BAD.items():
        if release in case.get("quiet_on", ()):
            assert not refused(judged[name]), judged[name]
            assert not told(judged[name], "error", "warning") & set(case["catches"]), (
                name,
                judged[name]["findings"],
            )


def test_the_corpus_is_whole() -> None:
    ids = {rule.id for rule in all_rules()}
    for name, case in CORPUS.items():
        assert case["source"].startswith("https://github.com/"), name
        assert case["why"].endswith("."), name
        if case["kind"] == "good":
            assert set(case["releases"]) <= set(RELEASES), name
        else:
            assert bool(case["catches"]) is not bool(case.get("out_of_reach")), name
            assert set(case["catches"]) <= ids, name


@pytest.mark.slow
@pytest.mark.parametrize("release", RELEASES[1:])
def test_every_good_launch_on_every_release(release: str) -> None:
    """The full matrix, an hour on two cores: run it with -m slow."""
    names = tuple(name for name, case in GOOD.items() if release in case["releases"])
    for name, report in reports(release, names).items():
        if not refused(report):
            assert not told(report, "error"), (name, report["findings"])
            assert told(report, "warning") <= HINTS.get(name, set()), (name, report["findings"])

"""Public launches: no harm said of those that work, and the share of the reported ones that is caught."""

from __future__ import annotations

from collections import defaultdict

import pytest

from sglang_guards.rules import all_rules
from tests.launches.corpus_cases import BAD, CORPUS, GOOD, refused, releases_of, reports, told
from tests.trees import RELEASES

pytestmark = pytest.mark.live

#: Releases on which CI judges every good launch that they accept.
JUDGED = ("0.5.12", "0.5.15", "0.5.23")
#: Good launches that a release does not take: an option or model that it does not know, a refusal of its own, or a
#: package that this machine lacks. Nothing is said of the others.
NOT_TAKEN: dict[str, set[str]] = {
    "0.5.12": {
        "ci-dsv4-pro-nvfp4-dep8-b200",
        "ci-mimo-v2-flash-tp4-dp2-mtp-h200",
        "doc-glm47-tp8-mi300x",
        "doc-qwen35-397b-bf16-nextn-h200",
    },
    "0.5.15": {
        "ci-dsv4-pro-nvfp4-dep8-b200",
        "ci-mimo-v2-flash-tp4-dp2-mtp-h200",
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
        "doc-glm47-tp8-mi300x",
    },
}
#: Warnings that are right on a launch that works: the flag's own pull request, measured slower on an H200.
HINTS = {"pr-qwen3-235b-2507-tp8-fused-sum": {"FMS301"}}
#: Reported cases that are caught on the release that they name: all that are within reach.
CAUGHT = {
    "ARF": {
        "bug-20901-dsr1-moe-dense-tp1-b200",
        "bug-24629-qwen3-30b-deterministic-tp4",
        "bug-24629-qwen3-next-deterministic-tp4-h100",
        "bug-29274-glm52-nvfp4-eagle-breakable",
        "bug-29485-glm51-nvfp4-eagle-b300",
        "bug-30945-nemotron3-nano-tp2",
        "bug-32511-qwen3-235b-tp8-ep2-h200",
        "bug-gb10-arfusion-explicit",
    },
    "FMS": {"bug-30485-fused-sum-ep8-minimax-m25", "use-dsv41-gb10-flag-dead"},
    "DET": {
        "bug-19431-gpt-oss-120b-deterministic-tp2",
        "bug-20509-qwen35-397b-fp8-deterministic-tp8",
        "bug-31261-qwen36-27b-deterministic-tp2",
    },
    "PAR": {
        "bug-29448-glm52-lora-moe-dense-tp1",
        "bug-31475-shared-expert-tp1-dsv3",
        "bug-37187-gpt-oss-120b-dp4-ep4",
        "bug-38773-dsv4-flash-mxfp4-tbo-h20",
    },
    "QNT": {
        "bug-26107-step35-flash-fp8-tp4",
        "bug-3345-dsr1-fp8-tp32",
        "bug-coder480b-fp8-tp8-no-ep-mi300x",
    },
    "RUN": {
        "bug-22784-gpt-oss-120b-bf16-ep8",
        "bug-23178-qwen3-30b-lora-ep4",
        "bug-26324-dsv4-flash-trtllm-b200",
        "bug-26324-minimax-m27-nvfp4-trtllm-b200",
        "bug-27274-qwen35-35b-lora-virtual-experts",
        "bug-27712-qwen3-30b-trtllm-piecewise-b200",
        "bug-27930-gpt-oss-20b-mxfp4-lora-triton",
        "bug-33660-glm52-w4afp8-deepep-h200",
        "bug-hyperloom1036-qwen35-397b-mxfp4-quark-triton",
        "bug-hyperloom1459-qwen3-next-fp8-triton-aiter",
        "bug-kt2058-minimax-m3-mxfp8-sm120",
        "note-glm52-fp8-triton-fused-sum-b200",
    },
    "SPC": {
        "bug-21272-kimi-k25-eagle3-draft-as-eagle",
        "bug-30209-glm52-nvfp4-eagle-b200",
        "bug-31384-glm52-fp8-tp16-dp2-eagle-h20",
        "bug-36528-qwen25-eagle3-no-draft",
        "bug-40623-glm52-nvfp4-megamoe-eagle",
    },
}


def batch(release: str) -> tuple[str, ...]:
    """What CI judges on one release, in one process."""
    good = [name for name, case in GOOD.items() if release in case["releases"] and release in JUDGED]
    return tuple(good + [name for name in BAD if release in releases_of(name)])


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


def test_the_share_of_reported_launches_that_is_caught(capsys: pytest.CaptureFixture[str]) -> None:
    caught: dict[str, set[str]] = defaultdict(set)
    reachable: dict[str, set[str]] = defaultdict(set)
    for name, case in BAD.items():
        if case.get("out_of_reach"):
            continue
        reachable[case["family"]].add(name)
        report = reports(case["release"], batch(case["release"]))[name]
        if told(report, "error", "warning") & set(case["catches"]):
            caught[case["family"]].add(name)
    with capsys.disabled():
        print()
        for family, names in sorted(reachable.items()):
            print(f"  {family}: {len(caught[family])} of {len(names)} reported launches caught")
        out = [name for name, case in BAD.items() if case.get("out_of_reach")]
        print(f"  out of reach or repaired before 0.5.10: {len(out)}")
    assert caught == CAUGHT


@pytest.mark.parametrize("name", [name for name in BAD if BAD[name].get("quiet_on")])
def test_the_rules_are_quiet_where_it_is_repaired(name: str) -> None:
    for release in BAD[name]["quiet_on"]:
        report = reports(release, batch(release))[name]
        assert not refused(report), report
        assert not told(report, "error", "warning") & set(BAD[name]["catches"]), (release, report["findings"])


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

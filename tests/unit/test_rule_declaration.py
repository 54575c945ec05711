"""What follows from a rule's declaration: evidence, skips, flags as typed, fixes, what it was decided by."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sglang_guards.judge import judge
from sglang_guards.launch.facts import Fact, Launch
from sglang_guards.report.model import Report, Severity
from sglang_guards.rules import Rule, Violation, ask, manual, registry, rule, set_to, sglang_issue, unset
from sglang_guards.settings import Settings
from sglang_guards.source.tree import Answer, Source
from tests.contract.tables import source


@pytest.fixture(autouse=True)
def _no_rule_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_REGISTRY", {})


class Answers(Source):
    """A real tree, with the answers of three invented probes."""

    def __init__(self, **answers: bool | None) -> None:
        super().__init__(source("0.5.15").root)
        self.given = answers

    def ask(self, name: str, **arguments: str) -> Answer:
        if name not in self.given:
            return super().ask(name, **arguments)
        return Answer(self.given[name], f"sglang/srt/x.py:{len(arguments) + 1}")


def launch(answers: Source | None = None, typed: dict[str, str] | None = None, **args: Any) -> Launch:
    facts = {f"args.{name}": Fact(value, "given") for name, value in args.items()}
    return Launch(facts, source=answers, typed=typed or {}, env={"SGLANG_X": "1"})


def report(made: Rule, of: Launch) -> Report:
    return judge(of, Settings(), [made])


def declared(**declaration: Any) -> Rule:
    @rule("ZZZ101", "two-things", Severity.ERROR, summary="two things", **declaration)
    def two_things(launch: Launch) -> Iterator[Violation]:
        if launch["args.ep_size"] > 1:
            yield Violation(
                cause="it is so",
                impact="at start-up",
                flags=("ep_size", "SGLANG_X=1"),
                fix=unset("ep_size", otherwise="apply a patch"),
            )

    return two_things


def test_the_answer_gives_the_place_and_the_evidence() -> None:
    made = declared(source={"p": False}, reports=[sglang_issue(1)], measured=["on one GPU"])
    (finding,) = report(made, launch(Answers(p=False), {"ep_size": "--ep 4"}, ep_size=4)).findings
    assert finding.cause == "it is so (x.py:1)"
    assert finding.flags == ("--ep 4", "SGLANG_X=1")
    assert finding.fix is not None
    assert finding.fix.text == "remove --ep, or apply a patch"
    assert dict(finding.fix.set) == {"ep_size": None}
    assert [(e.kind, e.ref) for e in finding.evidence] == [
        ("source", "x.py:1"),
        ("report", "https://github.com/sgl-project/sglang/issues/1"),
        ("measured", "on one GPU"),
    ]
    assert finding.decided_by == ("args.ep_size", "source.p")


@pytest.mark.parametrize(
    ("answers", "ep", "passed", "skipped"),
    [
        ({"p": True}, 4, ["ZZZ101"], []),
        ({"p": None}, 4, [], [("ZZZ101", "source.p")]),
        ({"p": None}, 1, ["ZZZ101"], []),
        ({"p": True}, None, ["ZZZ101"], []),
        ({"p": False}, None, [], [("ZZZ101", "args.ep_size")]),
    ],
)
def test_three_valued(
    answers: dict[str, bool | None], ep: int | None, passed: list[str], skipped: list[tuple[str, str]]
) -> None:
    """A conjunction: one part that is known to be false settles it, whatever the others are."""
    made = declared(source={"p": False})
    known: dict[str, Any] = {} if ep is None else {"ep_size": ep}
    found = report(made, launch(Answers(**answers), **known))
    assert not found.findings
    assert list(found.passed) == passed
    assert [(s.id, s.missing) for s in found.skipped] == skipped


def test_one_answer_that_differs_settles_it_beside_an_unknown_one() -> None:
    made = declared(source={"p": False, "q": True})
    assert report(made, launch(Answers(p=None, q=False), ep_size=4)).passed == ("ZZZ101",)
    assert report(made, launch(Answers(p=None, q=True), ep_size=4)).skipped[0].missing == "source.p"


def test_a_probe_is_asked_about_this_launch() -> None:
    made = declared(source={ask("p", size="args.tp_size"): True})
    (finding,) = report(made, launch(Answers(p=True), ep_size=2, tp_size=8)).findings
    assert finding.cause == "it is so (x.py:2)"
    assert finding.decided_by == ("args.ep_size", "args.tp_size", "source.p(size=8)")
    assert (
        report(made, launch(Answers(p=None), ep_size=2, tp_size=8)).skipped[0].missing == "source.p(size=8)"
    )


def test_a_violation_picks_its_case() -> None:
    @rule(
        "ZZZ102",
        "by-platform",
        Severity.ERROR,
        summary="by platform",
        source={"ROCm": {"p": True}, "XPU": {"q": True}},
    )
    def by_platform(launch: Launch) -> Iterator[Violation]:
        yield Violation(cause="of ROCm", impact="x", case="ROCm")
        yield Violation(cause="of XPU", impact="x", case="XPU")
        yield Violation(cause="of neither", impact="x", severity=Severity.INFO)

    found = report(by_platform, launch(Answers(p=False, q=True)))
    assert [f.cause for f in found.findings] == ["of XPU (x.py:1)", "of neither"]
    unknown = report(by_platform, launch(Answers(p=None, q=None)))
    assert [f.cause for f in unknown.findings] == ["of neither"]


def test_an_unknown_fact_in_applies_skips_and_a_flag_of_another_release_does_not() -> None:
    made = declared(applies=lambda launch: launch["model.is_moe"] is True)
    assert report(made, launch(source("0.5.15"), ep_size=2)).skipped[0].missing == "model.is_moe"
    made = declared_once_more(applies=lambda launch: bool(launch["args.of_a_later_release"]))
    found = report(made, launch(source("0.5.15"), ep_size=2))
    assert not found.skipped
    assert not found.applied
    assert report(made, launch(ep_size=2)).skipped[0].missing == "args.of_a_later_release"


def declared_once_more(**declaration: Any) -> Rule:
    registry._REGISTRY.clear()
    return declared(**declaration)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (unset("ep_size"), "remove --ep"),
        (unset("ep_size", "tp_size"), "remove --ep and --tp-size"),
        (set_to("ep_size", 2), "set --ep 2"),
        (set_to("max_running_requests", 32), "add --max-running-requests 32"),
        (set_to("enable_x", True), "add --enable-x"),
        (unset("ep_size") + set_to("enable_x", True), "remove --ep and add --enable-x"),
        (set_to("ep_size", 2, otherwise="wait"), "set --ep 2, or wait"),
        (manual("use another checkpoint"), "use another checkpoint"),
    ],
)
def test_the_sentence_of_a_fix_is_its_change(change: Any, text: str) -> None:
    assert change.text(launch(None, {"ep_size": "--ep=4"}, ep_size=4)) == text


def test_a_refused_launch_is_judged_by_nothing_else() -> None:
    made = declared()
    facts = {"refusal.message": Fact("no", "resolved"), "refusal.where": Fact("", "resolved")}
    found = judge(Launch(facts), Settings(), [made])
    assert [(s.id, s.missing) for s in found.skipped] == [("ZZZ101", "resolved server args")]
    assert found.verdict == "unknown"


def test_an_environment_switch_that_was_read_is_named() -> None:
    @rule("ZZZ103", "by-environment", Severity.INFO, summary="x")
    def by_environment(launch: Launch) -> Iterator[Violation]:
        if launch.env.get("SGLANG_X") == "1" and launch.given("ep_size"):
            yield Violation(cause="c", impact="i", fix=manual("unset SGLANG_X"))

    (finding,) = report(by_environment, launch(ep_size=2)).findings
    assert finding.decided_by == ("env.SGLANG_X", "args.ep_size")

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sglang_guards.judge import judge
from sglang_guards.launch.facts import Fact, Launch, MissingFact
from sglang_guards.report.model import Finding, Severity
from sglang_guards.rules import Rule
from sglang_guards.settings import Settings


def made(id: str, check: object, severity: Severity = Severity.ERROR) -> Rule:
    return Rule(id, "name", severity, "summary", (), lambda launch: True, check, "")  # type: ignore[arg-type]


def says(id: str, severity: Severity = Severity.ERROR) -> Rule:
    def check(launch: Launch) -> Iterator[Finding]:
        yield Finding(id, "name", severity, "message")

    return made(id, check, severity)


def quiet(launch: Launch) -> Iterator[Finding]:
    yield from ()


def test_worst_first_and_verdict() -> None:
    report = judge(
        Launch({}), Settings(), [says("ZZZ901", Severity.INFO), says("ZZZ102"), made("ZZZ103", quiet)]
    )
    assert [f.id for f in report.findings] == ["ZZZ102", "ZZZ901"]
    assert report.passed == ("ZZZ103",)
    assert report.verdict == "fail"


def test_a_missing_fact_skips_and_does_not_pass() -> None:
    def check(launch: Launch) -> Iterator[Finding]:
        if launch["args.unheard_of"]:
            yield from ()

    report = judge(Launch({}), Settings(), [made("ZZZ101", check)])
    assert report.passed == ()
    assert [(s.id, s.missing) for s in report.skipped] == [("ZZZ101", "args.unheard_of")]


def test_a_crash_in_a_rule_is_a_line() -> None:
    def check(launch: Launch) -> Iterator[Finding]:
        raise RuntimeError("boom")
        yield

    report = judge(Launch({}), Settings(), [made("ZZZ101", check), says("ZZZ102", Severity.WARNING)])
    assert [f.id for f in report.findings] == ["ZZZ102"]
    assert "boom" in report.notes[0]
    assert report.verdict == "pass"


def test_ignored_with_its_reason() -> None:
    report = judge(Launch({}), Settings(ignore={"ZZZ": "we know"}), [says("ZZZ101")])
    assert report.findings == ()
    assert [(i.id, i.reason) for i in report.ignored] == [("ZZZ101", "we know")]
    assert report.verdict == "pass"


def test_warn_mode_turns_errors_into_warnings() -> None:
    report = judge(Launch({}), Settings(mode="warn"), [says("ZZZ101")])
    assert report.findings[0].severity is Severity.WARNING
    assert report.verdict == "pass"


def test_none_is_a_value_and_missing_is_not() -> None:
    launch = Launch({"args.x": Fact(None, "default")})
    assert launch["args.x"] is None
    with pytest.raises(MissingFact) as missing:
        launch["args.y"]
    assert missing.value.name == "args.y"

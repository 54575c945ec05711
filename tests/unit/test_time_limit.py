"""A time limit that ends what it stops, and rules that run under it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from sglang_guards.judge import judge
from sglang_guards.launch.facts import Launch
from sglang_guards.report.model import Finding, Severity
from sglang_guards.rules import Rule
from sglang_guards.settings import Settings
from sglang_guards.time_limit import within


def endless() -> None:
    while True:
        try:
            sum(range(100))
        except Exception:  # noqa: BLE001 - what a careless rule would do
            continue


def test_an_endless_loop_is_ended() -> None:
    started = time.monotonic()
    assert within(0.2, endless) is False
    assert time.monotonic() - started < 5
    assert not any(thread.name == "sglang-guards-rules" for thread in threading.enumerate())


def test_what_ends_in_time_is_done_and_what_it_raises_is_raised() -> None:
    done: list[int] = []
    assert within(5, lambda: done.append(1)) is True
    assert done == [1]
    with pytest.raises(ZeroDivisionError):
        within(5, lambda: done.append(1 // 0))


def made(rule_id: str, hangs: bool) -> Rule:
    def check(launch: Launch) -> Iterator[Finding]:
        if hangs:
            endless()
        yield Finding(rule_id, "x", Severity.ERROR, "x")

    return Rule(rule_id, "x", Severity.ERROR, "x", (), lambda launch: True, check, "")


def test_rules_that_are_not_done_in_time_are_named() -> None:
    rules = (made("AAA101", False), made("BBB101", True), made("CCC101", False))
    report = judge(Launch({}), Settings(), rules, seconds=0.3)
    assert [f.id for f in report.findings] == ["AAA101"]
    assert report.notes == ("could not judge BBB101, CCC101: the rules were stopped after 0.3 s",)
    assert [s.id for s in report.skipped] == ["BBB101", "CCC101"]


def test_ignored_ids_that_select_nothing_are_named() -> None:
    ignore = {"AAA101": "a", "AAA": "b", "FMS9": "c", "X": "d", "*": "e", "SGL001": "f"}
    notes = judge(Launch({}), Settings(ignore=ignore), (made("AAA101", False),)).notes
    assert [note.split(": ")[1].split(" ")[0] for note in notes] == ["FMS9", "X", "*", "SGL001"]
    assert "write its id, AAA101" in notes[1]

"""Flags of a command line without a parser: what is a flag's value, what is none."""

from __future__ import annotations

import pytest

from sglang_guards.flags import Typed, typed


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--tp", "4"], [Typed("--tp", "4", "--tp 4")]),
        (["--tp=4", "x"], [Typed("--tp", "4", "--tp=4")]),
        (["--a=b=c"], [Typed("--a", "b=c", "--a=b=c")]),
        (["--on", "--tp", "-1"], [Typed("--on", None, "--on"), Typed("--tp", "-1", "--tp -1")]),
        (["--on"], [Typed("--on", None, "--on")]),
        (["--empty="], [Typed("--empty", "", "--empty=")]),
        (["-x", "--", "serve"], []),
    ],
)
def test_a_flag_and_its_value(words: list[str], found: list[Typed]) -> None:
    assert list(typed(words)) == found

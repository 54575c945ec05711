"""SGLANG_GUARDS_BUILD: which launch is built, and that nothing of it stands in the way of a start."""

from __future__ import annotations

import pytest

from sglang_guards.hook import build_check
from sglang_guards.settings import from_env


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (
            ("/site/sglang/launch_server.py", "--model-path", "m", "--tp", "2"),
            ["python", "-m", "sglang.launch_server", "--model-path", "m", "--tp", "2"],
        ),
        (("/usr/bin/sglang", "serve", "m"), ["sglang", "serve", "m"]),
        (("my_engine.py", "--tp", "2"), None),
        ((), None),
    ],
)
def test_the_command_is_told_from_the_arguments(argv: tuple[str, ...], command: list[str] | None) -> None:
    assert build_check.launch_command(argv) == command


def test_a_program_of_its_own_builds_nothing_and_says_so() -> None:
    facts, notes = build_check.facts(("my_engine.py",))
    assert facts == {}
    assert "nothing was built" in notes[0]


@pytest.mark.parametrize(("value", "on"), [("1", True), ("true", True), ("0", False), ("", False)])
def test_the_switch(value: str, on: bool) -> None:
    assert from_env({"SGLANG_GUARDS_BUILD": value}).build is on

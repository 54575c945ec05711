"""Modules that are imported before the launches fork, and the launches for which that is too early."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import cast

import pytest

from sglang_guards.build import ahead
from sglang_guards.preflight import resolve
from sglang_guards.preflight.messages import Request
from sglang_guards.preflight.parsed import Parsed

READS: dict[str, Callable[[str], object]] = {
    "getenv": os.getenv,
    "get": os.environ.get,
    "in": lambda name: name in os.environ,
    "copy": lambda name: os.environ.copy(),
}


@pytest.mark.parametrize("way", READS)
def test_every_way_to_read_a_variable_is_noted(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_VARIABLE", "1")
    with ahead._reads() as names:
        READS[way]("SOME_VARIABLE")
    assert "SOME_VARIABLE" in names
    os.getenv("ANOTHER_VARIABLE")
    assert "ANOTHER_VARIABLE" not in names


def parsed(read: list[str]) -> Parsed:
    return Parsed(cast(Request, {"read_ahead": read}), env={"KEPT": "1", "CHANGED": "1"})


def test_a_variable_that_the_resolution_changed_after_it_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT", "1")
    monkeypatch.setenv("CHANGED", "2")
    monkeypatch.setenv("NEW", "1")
    resolve._not_too_early(parsed(["KEPT", "NOT_SET"]))
    for name in ("CHANGED", "NEW"):
        with pytest.raises(resolve._TooEarly):
            resolve._not_too_early(parsed(["KEPT", name]))

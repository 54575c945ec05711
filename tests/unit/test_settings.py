from __future__ import annotations

import pytest

from sglang_guards.settings import Settings, from_env, ignore_reason, parse_ignore


def test_defaults() -> None:
    assert from_env({}) == Settings()


@pytest.mark.parametrize("mode", ["enforce", "warn", "fix", "off", " FIX "])
def test_modes(mode: str) -> None:
    settings = from_env({"SGLANG_GUARDS": mode})
    assert settings.mode == mode.strip().lower()
    assert settings.notes == ()


def test_nonsense_is_a_note_and_the_default() -> None:
    settings = from_env({"SGLANG_GUARDS": "maybe", "SGLANG_GUARDS_AUTO": "sometimes"})
    assert settings.mode == "enforce"
    assert settings.auto_enable is True
    assert len(settings.notes) == 2
    assert "maybe" in settings.notes[0]


def test_auto_off() -> None:
    assert from_env({"SGLANG_GUARDS_AUTO": "0"}).auto_enable is False


def test_ignore_needs_a_reason() -> None:
    ignore, complaints = parse_ignore("FMS101=tested on our fork; ARF = known ; FMS301; =x")
    assert ignore == {"FMS101": "tested on our fork", "ARF": "known"}
    assert len(complaints) == 2


def test_longest_prefix_wins_and_sglangs_own_refusal_cannot_be_ignored() -> None:
    ignore = {"FMS": "family", "FMS101": "one", "SGL": "no"}
    assert ignore_reason(ignore, "FMS101") == "one"
    assert ignore_reason(ignore, "FMS102") == "family"
    assert ignore_reason(ignore, "ARF101") is None
    assert ignore_reason(ignore, "SGL001") is None


@pytest.mark.parametrize(
    ("text", "ignored"),
    [
        ("FMS101,ARF102=both", {"FMS101": "both", "ARF102": "both"}),
        ("FMS101=a, ARF=b", {"FMS101": "a", "ARF": "b"}),
        ("FMS101=tested, twice; arf=b", {"FMS101": "tested, twice", "ARF": "b"}),
        ("FMS101=a,b=c", {"FMS101": "a,b=c"}),
    ],
)
def test_lists_of_ids_to_ignore(text: str, ignored: dict[str, str]) -> None:
    assert parse_ignore(text) == (ignored, [])

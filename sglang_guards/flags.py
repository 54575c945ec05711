"""Flags of a command line, told without SGLang's parser.

Who has the parser uses `preflight.options`, which takes words apart as that release does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Typed:
    """One long flag as typed: `name` without its value, `value` None where none follows, `text` both."""

    name: str
    value: str | None
    text: str


def typed(words: Sequence[str]) -> Iterator[Typed]:
    """Every long flag; the word after it is its value unless that is a flag too."""
    for at, word in enumerate(words):
        if not word.startswith("--") or word == "--":
            continue
        name, sign, value = word.partition("=")
        following = next((w for w in words[at + 1 : at + 2] if not w.startswith("--")), None)
        if sign:
            yield Typed(name, value, word)
        else:
            yield Typed(name, following, f"{name} {following or ''}".strip())

"""The words of a command, how far they are read, and what the programs in front have changed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePath

from sglang_guards.shell import NAME

FORMS = "python -m sglang.launch_server … or sglang serve …"


@dataclass(frozen=True)
class Wrapper:
    """A program that runs the command behind its own options: which of them take a word, and words before it."""

    values: frozenset[str] = frozenset()
    words: int = 0
    #: ``nice -10``: a number is an option by itself.
    numbers: bool = False


def wrapper(values: str = "", words: int = 0, numbers: bool = False) -> Wrapper:
    return Wrapper(frozenset(values.split()), words, numbers)


@dataclass
class Reader:
    """The words of a command, how far they are read, and what the ones behind have changed."""

    words: tuple[str, ...]
    at: int = 0
    env: dict[str, str] = field(default_factory=dict)
    unset: list[str] = field(default_factory=list)
    clear: bool = False
    #: In a container: what the host sets for SGLang does not reach the launch.
    contained: bool = False
    notes: list[str] = field(default_factory=list)
    #: Where a Python other than this one is started, each as words for a sentence.
    places: list[str] = field(default_factory=list)
    #: GPUs that a container is given, as CUDA_VISIBLE_DEVICES would say it; None: all.
    devices: str | None = None
    mounts: list[tuple[str, str]] = field(default_factory=list)
    #: A text for a shell, in place of words.
    script: str | None = None
    script_words: tuple[str, ...] = ()
    cwd: str = ""

    @property
    def word(self) -> str:
        return self.words[self.at] if self.at < len(self.words) else ""

    @property
    def name(self) -> str:
        return PurePath(self.word).name

    def take(self) -> str:
        word = self.word
        self.at += 1
        return word

    def assignments(self) -> None:
        while (found := self.word.partition("="))[1] and NAME.fullmatch(found[0]):
            self.env[found[0]] = found[2]
            self.at += 1

    def options(self, wrapper: Wrapper) -> dict[str, list[str]]:
        """Step over a wrapper's options and words; the options by name, a switch with an empty text."""
        seen: dict[str, list[str]] = {}
        while self.word.startswith("-") and len(self.word) > 1:
            word = self.take()
            if word == "--":
                break
            name, sign, value = word.partition("=")
            if word.startswith("--"):
                taken = value if sign else self.take() if name in wrapper.values else ""
                seen.setdefault(name, []).append(taken)
            elif wrapper.numbers and word[1:].isdigit():
                continue
            else:
                self._short(word, wrapper, seen)
        self.at += wrapper.words
        return seen

    def _short(self, word: str, wrapper: Wrapper, seen: dict[str, list[str]]) -> None:
        """``-E``, ``-oL``, ``-n 5``, ``-it``."""
        for at in range(1, len(word)):
            name = f"-{word[at]}"
            if name in wrapper.values:
                seen.setdefault(name, []).append(word[at + 1 :] or self.take())
                return
            seen.setdefault(name, []).append("")

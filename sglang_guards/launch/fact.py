"""One fact of a launch, and what a reader of facts may ask for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from sglang_guards.source import Source

#: More ranks than any launch has: what a rule tries one by one ends here, whatever number was typed.
MOST_RANKS = 4096


class MissingFact(LookupError):
    """A rule asked for a fact that this launch does not have; the rule is then skipped, not passed."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@dataclass(frozen=True)
class Fact:
    """A value and where it came from.

    `origin` is given (typed by the user), default, resolved (decided by SGLang), config (the checkpoint), source (the
    installed SGLang's source), assumed (--gpu), machine (this host) or derived; `where` is a file:line or a reason.
    """

    value: Any
    origin: str
    where: str = ""


class Facts(Protocol):
    """The part of a Launch that facts are derived from."""

    @property
    def env(self) -> Mapping[str, str]: ...

    @property
    def source(self) -> Source | None: ...

    def __getitem__(self, name: str) -> Any: ...

    def get(self, name: str, default: Any = None) -> Any:
        """The value, or `default` when the fact is not known."""

    def where(self, name: str) -> str:
        """The place that decided a fact; empty when there is none."""

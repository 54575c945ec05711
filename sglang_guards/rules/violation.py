"""What a rule yields: a violation, and the change of server args that settles it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sglang_guards.launch.facts import Launch
from sglang_guards.report.model import Evidence, Fix, Severity

_FIELD = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class Change:
    """A change of server args; its sentence is made from it, with every flag spelled as the operator typed it.

    `set` maps fields to their new value, None for a flag that is removed. `otherwise` is another way out, said after
    «or»; without any field it is the whole sentence. `then` says what follows from the change. A change that is not
    `safe` touches more than the operator may want, so that it is only printed.
    """

    set: Mapping[str, Any] = field(default_factory=dict)
    otherwise: str = ""
    safe: bool = True
    then: str = ""

    def __add__(self, other: Change) -> Change:
        """Both changes together."""
        otherwise = " or ".join(part for part in (self.otherwise, other.otherwise) if part)
        then = self.then or other.then
        return Change({**self.set, **other.set}, otherwise, self.safe and other.safe, then)

    def text(self, launch: Launch) -> str:
        """The sentence that the operator reads."""
        removed = [_spelled(launch, name) for name, value in self.set.items() if value in (None, False)]
        parts = [f"remove {_listed(removed)}"] if removed else []
        for name, value in self.set.items():
            if value is True:
                parts.append(f"add {_long(name)}")
            elif value not in (None, False):
                verb = "set" if _has(launch, name) else "add"
                parts.append(f"{verb} {_spelled(launch, name)} {value}")
        ways = ", or ".join(part for part in (_listed(parts), self.otherwise) if part)
        return f"{ways}: {self.then}" if self.then else ways

    def fix(self, launch: Launch) -> Fix:
        """The change as a report carries it."""
        return Fix(self.text(launch), self.set, "safe" if self.safe else "display")


def unset(*fields: str, otherwise: str = "", then: str = "", safe: bool = True) -> Change:
    """Remove these flags."""
    return Change(dict.fromkeys(fields), otherwise, safe, then)


def set_to(name: str, value: Any, *, otherwise: str = "", then: str = "", safe: bool = True) -> Change:
    """Give one flag a value; True adds a switch."""
    return Change({name: value}, otherwise, safe, then)


def manual(text: str) -> Change:
    """Something that no flag does."""
    return Change(otherwise=text)


@dataclass(frozen=True)
class Violation:
    """One thing that a rule found.

    `cause` is the deciding fact and `impact` what happens and when. `flags` are fields of ServerArgs, shown as they
    were typed, or texts that are shown as they are (an environment variable). `case` names the entry of the rule's
    `source` that must hold, where the rule has several. `message` and `severity` default to the rule's own.
    """

    cause: str
    impact: str
    fix: Change | None = None
    flags: tuple[str, ...] = ()
    severity: Severity | None = None
    message: str | None = None
    case: str | None = None
    evidence: tuple[Evidence, ...] = ()

    def shown_flags(self, launch: Launch) -> tuple[str, ...]:
        """The flags as the operator typed them."""
        return tuple(launch.flag(flag) if _FIELD.fullmatch(flag) else flag for flag in self.flags)


def _has(launch: Launch, name: str) -> bool:
    """Whether the arg has a value that is not its default, typed or resolved."""
    known = launch.facts.get(f"args.{name}")
    return launch.given(name) or (known is not None and known.origin == "resolved")


def _long(name: str) -> str:
    return "--" + name.replace("_", "-")


def _spelled(launch: Launch, name: str) -> str:
    """The flag without its value: as typed, or its long spelling."""
    return re.split(r"[ =]", launch.typed[name], maxsplit=1)[0] if name in launch.typed else _long(name)


def _listed(words: list[str]) -> str:
    return " and ".join(([", ".join(words[:-1])] if words[1:] else []) + words[-1:])

"""How a row of the verdict table is put together: what was requested, as typed, and what resolution made of it."""

from __future__ import annotations

from sglang_guards.flag_table.source_lines import acted_on
from sglang_guards.launch.facts import Launch
from sglang_guards.report.model import FlagVerdict

NOT_SET = "not set"
#: Effects that say of a flag that this SGLang acts on it.
ACTS = frozenset({"active", "auto-enabled"})


def flag(field: str) -> str:
    """The long spelling of a server arg."""
    return "--" + field.replace("_", "-")


def given(launch: Launch, field: str) -> bool:
    """Whether the operator set this server arg."""
    return launch.given(field)


def resolved(launch: Launch, field: str) -> bool:
    """Whether SGLang changed the value that was given or would have been the default."""
    known = launch.facts.get(f"args.{field}")
    return known is not None and known.origin == "resolved"


def requested(launch: Launch, field: str) -> str:
    """What the operator asked of a flag: its value as typed, «on» for a switch, «not set»."""
    if not given(launch, field):
        return NOT_SET
    typed = launch.typed.get(field, "").strip()
    head, _, value = typed.replace("=", " ", 1).partition(" ")
    if value:
        return value
    if head.startswith("--"):
        return "on"
    current = launch.get(f"args.{field}")
    return "on" if current is True else "off" if current is False else str(current)


def row(
    launch: Launch, field: str, effect: str, why: str, source: str, name: str | None = None
) -> FlagVerdict:
    """One row; `name` replaces the flag's spelling where releases differ.

    A flag acts only where the line was seen that acts on it: another tree may have it elsewhere, or nowhere.
    """
    if effect in ACTS and not (source and acted_on(launch, field)):
        effect, why = "unknown", f"the line that acts on it was not found in this SGLang; as resolved: {why}"
    return FlagVerdict(name or flag(field), requested(launch, field), effect, why, source)

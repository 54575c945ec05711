"""Words that only the running shell knows: what of a command can be judged without them, and how that is said."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sglang_guards.preflight import options
from sglang_guards.preflight.command_line import Command

#: Fields that decide nothing here: no rule reads them, and SGLang resolves nothing else by them.
FREE = frozenset(
    {
        "port", "nccl_port", "node_rank", "random_seed", "watchdog_timeout", "dist_timeout", "stream_interval",
        "decode_log_interval", "log_requests_level", "disaggregation_bootstrap_port",
    }
)  # fmt: skip
#: All that a script or a function was given.
_CALLERS = frozenset({"$@", "$*", "${@}", "${*}"})


def callers(cmd: Command) -> frozenset[str]:
    """The words of the command that stand for what a caller adds."""
    return _CALLERS.intersection(cmd.unknown, cmd.args)


def known_args(cmd: Command) -> list[str]:
    """The arguments without what a caller adds."""
    left_out = callers(cmd)
    return [word for word in cmd.args if word not in left_out]


def free(cmd: Command, table: Sequence[options.Option]) -> dict[str, str]:
    """Field -> the flag as typed, for flags whose value is not known and decides nothing here."""
    return {
        use.option.field: use.text
        for use in options.uses(cmd.args, table)
        if use.option.field in FREE and any(text in value for value in use.values for text in cmd.unknown)
    }


def notes(cmd: Command, left_out: Collection[str]) -> list[str]:
    """What is said of the words that are not known; `left_out` are the flags that were judged without."""
    made = [
        f"{flag}: the value is not set here and no rule reads it; SGLang's own default is judged"
        for flag in left_out
    ]
    added = callers(cmd)
    written = [
        text for text in cmd.unknown if text not in added and not any(text in flag for flag in left_out)
    ]
    if written:
        made.append(f"{', '.join(written)} is not set here and is judged as written; give its value in front")
    return made


def not_judged(cmd: Command) -> tuple[str, ...]:
    """A line of the report's unknown for what a caller adds."""
    return tuple(
        f"what a caller adds by {word}: the command is judged without" for word in sorted(callers(cmd))
    )


def as_text(cmd: Command) -> tuple[str, ...]:
    """Said of a corrected command that still holds such words."""
    held = [text for text in cmd.unknown if any(text in word for word in cmd.argv)]
    return (f"the corrected command holds {', '.join(held)} as text: take the quotes away",) if held else ()

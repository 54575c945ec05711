"""SGLang's own command-line options as data, and how to find and change them in an argument list.

The table is read from the installed release's argparse parser (`table`), so that words are taken apart as that
release would do it: long options, ``--flag=value``, unambiguous prefixes, any number of values.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Option:
    """One option. `nargs` is 0, a number, or argparse's ``?``, ``*``, ``+``; `kind` is how it writes its field."""

    names: tuple[str, ...]
    field: str
    nargs: int | str
    kind: str
    deprecated: bool = False

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def long(self) -> str:
        """The spelling to print: the one that reads like the field, else the first."""
        wanted = "--" + self.field.replace("_", "-")
        return wanted if wanted in self.names else self.names[0]


@dataclass(frozen=True)
class Use:
    """One use of an option: words `start` to `stop` of an argument list."""

    option: Option
    start: int
    stop: int
    words: tuple[str, ...]

    @property
    def text(self) -> str:
        """As typed."""
        return " ".join(self.words)

    @property
    def values(self) -> tuple[str, ...]:
        """The values, also of ``--flag=value``."""
        first = self.words[0].partition("=")
        return (*([first[2]] if first[1] else []), *self.words[1:])


def table(parser: argparse.ArgumentParser, fields: Collection[str]) -> tuple[Option, ...]:
    """The options of SGLang's parser. `fields` are those of ServerArgs: older releases name a dest otherwise."""
    return tuple(_option(action, fields) for action in parser._actions if action.option_strings)


def _option(action: argparse.Action, fields: Collection[str]) -> Option:
    nargs: int | str = 1 if action.nargs is None else action.nargs
    kind = "value"
    if nargs == 0:
        kind = "const"
        name = type(action).__name__
        if "StoreTrue" in name:
            kind = "true"
        elif "StoreFalse" in name:
            kind = "false"
        elif isinstance(action, argparse.BooleanOptionalAction):
            kind = "bool"
    return Option(
        tuple(action.option_strings),
        field_of(action, fields),
        nargs,
        kind,
        deprecated=type(action).__name__.startswith("Deprecated"),
    )


def field_of(action: argparse.Action, fields: Collection[str]) -> str:
    """The field of ServerArgs that an action sets (up to 0.5.13 ``--tp-size`` has the dest tensor_parallel_size)."""
    if action.dest in fields:
        return action.dest
    for name in action.option_strings:
        plain = name.lstrip("-").replace("-", "_")
        if plain in fields:
            return plain
    return action.dest


def from_json(rows: Sequence[Mapping[str, Any]]) -> tuple[Option, ...]:
    """The table as the resolver sent it."""
    return tuple(Option(**{**row, "names": tuple(row["names"])}) for row in rows)


_NEGATIVE = re.compile(r"-\d+$|-\d*\.\d+$")


def uses(args: Sequence[str], options: Sequence[Option]) -> tuple[Use, ...]:
    """Every use of an option in `args`; words that belong to none are left out."""
    by_name = {name: option for option in options for name in option.names}
    found = []
    at = 0
    while at < len(args):
        word = args[at]
        option = _lookup(word, by_name) if word.startswith("-") and word != "--" else None
        if option is None:
            at += 1
            continue
        stop = at + 1
        if "=" not in word:
            most = option.nargs if isinstance(option.nargs, int) else 1 if option.nargs == "?" else len(args)
            while stop < len(args) and stop - at - 1 < most and not _is_option(args[stop]):
                stop += 1
        found.append(Use(option, at, stop, tuple(args[at:stop])))
        at = stop
    return tuple(found)


def _is_option(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not _NEGATIVE.match(word) and " " not in word


def _lookup(word: str, by_name: Mapping[str, Option]) -> Option | None:
    name = word.partition("=")[0]
    if name in by_name:
        return by_name[name]
    if not name.startswith("--"):
        return None
    matches = {id(o): o for key, o in by_name.items() if key.startswith(name)}
    return next(iter(matches.values())) if len(matches) == 1 else None


def typed(args: Sequence[str], options: Sequence[Option]) -> dict[str, str]:
    """Field -> the flag as typed; the last use wins, as in argparse."""
    return {use.option.field: use.text for use in uses(args, options)}


def edit(
    args: Sequence[str], changes: Mapping[str, Any], options: Sequence[Option]
) -> tuple[tuple[str, ...], list[str]]:
    """`args` with fields set to new values (None removes the flag), and the fields that no option can set.

    The first use is changed where it stands, in the spelling that was typed; further uses of the field go.
    """
    words: list[str | None] = list(args)
    tail: list[str] = []
    unsettable = []
    for name, value in changes.items():
        own = [use for use in uses(args, options) if use.option.field == name]
        for use in own:
            words[use.start : use.stop] = [None] * (use.stop - use.start)
        option = next((use.option for use in own if not use.option.deprecated), None) or _settable(
            name, options
        )
        if option is None and (value is not None or not own):
            unsettable.append(name)
            continue
        new = _spelled(option, value, own) if option is not None else []
        if own and new:
            start = own[0].start
            words[start] = "\0".join(new)
        else:
            tail += new
    kept = [
        part for word in words if word is not None for part in (word.split("\0") if "\0" in word else [word])
    ]
    return (*kept, *tail), unsettable


def _settable(name: str, options: Sequence[Option]) -> Option | None:
    candidates = [o for o in options if o.field == name and o.kind != "const"]
    return min(candidates, key=lambda o: o.deprecated, default=None)


def _spelled(option: Option, value: Any, own: Sequence[Use]) -> list[str]:
    """The words that set `option` to `value`; none where the default (None, or a switch left off) is wanted."""
    if value is None:
        return []
    typed_use = next((use for use in own if use.option == option), None)
    flag = typed_use.words[0].partition("=")[0] if typed_use else option.long
    if option.kind in ("true", "false"):
        return [flag] if bool(value) == (option.kind == "true") else []
    if option.kind == "bool":
        positive = option.long
        return [positive if value else "--no-" + positive.removeprefix("--")]
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    texts = [json.dumps(v) if isinstance(v, (dict, list)) else str(v) for v in values]
    if typed_use and "=" in typed_use.words[0] and len(texts) == 1:
        return [f"{flag}={texts[0]}"]
    return [flag, *texts]

"""What the simple commands of a shell text become: assignments carried on, variables expanded, words split.

Nothing is run. A variable that is not set, a command substitution, and what is set inside ``if`` or a loop are not
known here: they stay in the word as typed, and the command names them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from sglang_guards.shell import NAME, Part, Raw, ShellError, Word, commands

_OPENING = frozenset({"if", "for", "while", "until", "case", "select", "{", "function"})
_CLOSING = frozenset({"fi", "done", "esac", "}"})
_BETWEEN = frozenset({"then", "else", "elif", "do", "!", "in"})
_EXPORTS = frozenset({"export", "declare", "typeset", "readonly", "local"})

_BLANK = (" ", "\t", "\n")

_Value = str | tuple[str, ...] | None


@dataclass(frozen=True)
class Simple:
    """One simple command as the shell would run it, and what of it is not known.

    `env` is what it inherits; `assignments` stand in front of it. `before` and `after` are the operators around it.
    """

    words: tuple[str, ...]
    assignments: tuple[tuple[str, str], ...]
    env: Mapping[str, str]
    redirects: tuple[str, ...]
    before: str
    after: str
    line: int
    unknown: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    #: Why the words cannot be told, where they cannot.
    problem: str = ""
    #: Inside ``if``, a loop, a function or brackets.
    nested: bool = False
    cwd: str = ""
    sourced: tuple[str, ...] = ()
    #: Exported variables whose value is not known.
    unknown_env: tuple[str, ...] = ()


@dataclass
class _State:
    variables: dict[str, _Value]
    exported: dict[str, None]
    depth: int = 0
    all_exported: bool = False
    cwd: str = ""
    sourced: list[str] = field(default_factory=list)

    def env(self) -> dict[str, str]:
        return {k: v for k in self.exported if isinstance(v := self.variables.get(k), str)}

    def set(self, name: str, value: _Value) -> None:
        if self.depth and self.variables.get(name) != value:
            value = None  # it depends on what runs
        self.variables[name] = value
        if self.all_exported:
            self.exported[name] = None


def run(text: str, env: Mapping[str, str]) -> list[Simple]:
    """The simple commands of `text`, started with `env`; raises `ShellError` for what no shell takes."""
    state = _State(dict(env), dict.fromkeys(env))
    found = []
    brackets = 0
    for raw in commands(text):
        raw = _without_reserved(raw, state)
        brackets = (
            brackets + 1 if raw.before == "(" else max(0, brackets - 1) if raw.before == ")" else brackets
        )
        if not raw.words:
            continue
        simple = _simple(raw, state, bool(state.depth or brackets))
        if simple.words:
            _builtin(simple, state)
            found.append(simple)
        else:
            for name, value in _assigned(raw, state):
                state.set(name, value)
    return found


def _without_reserved(raw: Raw, state: _State) -> Raw:
    words = raw.words
    while words and (word := words[0].bare):
        if word in _CLOSING:
            state.depth = max(0, state.depth - 1)
        elif word in _OPENING:
            state.depth += 1
            if word in ("for", "select") and len(words) > 1:
                state.variables[words[1].bare] = None
            if word in ("for", "select", "case", "function"):
                words = ()
                break
        elif word not in _BETWEEN:
            break
        words = words[1:]
    return Raw(words, raw.redirects, raw.before, raw.after, raw.line)


def _simple(raw: Raw, state: _State, nested: bool) -> Simple:
    front = 0
    while front < len(raw.words) and raw.words[front].assigns:
        front += 1
    expander = _Expander(state.variables)
    problem = ""
    words: list[str] = []
    assignments: list[tuple[str, str]] = []
    try:
        for word in raw.words[:front]:
            name = word.assigns.rstrip("=").rstrip("+")
            assignments.append((name, expander.one(_behind_sign(word))))
        for word in raw.words[front:]:
            words += expander.fields(word)
    except ShellError as error:
        problem = str(error)
        words = words or [raw.words[-1].raw]
    return Simple(
        words=tuple(words),
        assignments=tuple(assignments),
        env=state.env(),
        redirects=raw.redirects,
        before=raw.before,
        after=raw.after,
        line=raw.line,
        unknown=tuple(dict.fromkeys(expander.unknown)),
        patterns=tuple(dict.fromkeys(expander.patterns)),
        problem=problem,
        nested=nested,
        cwd=state.cwd,
        sourced=tuple(state.sourced),
        unknown_env=tuple(
            sorted(k for k in state.exported if k in state.variables and state.variables[k] is None)
        ),
    )


def _assigned(raw: Raw, state: _State) -> list[tuple[str, _Value]]:
    """What a line of assignments alone sets."""
    found: list[tuple[str, _Value]] = []
    for word in raw.words:
        expander = _Expander(state.variables)
        name = word.assigns.rstrip("=").rstrip("+")
        value: _Value
        if word.elements is not None:
            value = tuple(part for element in word.elements for part in expander.fields(element))
        else:
            value = expander.one(_behind_sign(word))
        if word.assigns.endswith("+="):
            before = state.variables.get(name)
            if before is None and name in state.variables:  # what it held hangs on what runs, and still does
                found.append((name, None))
                continue
            if isinstance(value, tuple):
                value = ((before,) if isinstance(before, str) else before or ()) + value
            elif isinstance(before, str):
                value = before + value
        found.append((name, None if expander.unknown and not isinstance(value, tuple) else value))
    return found


def _behind_sign(word: Word) -> Word:
    first = word.parts[0]
    rest = Part(first.text[len(word.assigns) :], False)
    parts = (*((rest,) if rest.text else ()), *word.parts[1:])
    return Word(parts, word.line, word.raw)


def _builtin(simple: Simple, state: _State) -> None:
    """What a command of the shell's own changes for the commands after it."""
    name, *rest = simple.words
    if name in _EXPORTS:
        export = name == "export" or any(word.startswith("-") and "x" in word for word in rest)
        for word in rest:
            key, sign, value = word.partition("=")
            if not NAME.fullmatch(key):
                continue
            if sign:
                state.set(key, None if any(part in value for part in simple.unknown) else value)
            if export:
                state.exported[key] = None
    elif name == "unset":
        for word in rest:
            state.variables.pop(word, None)
    elif name == "set" and ("-a" in rest or rest[:2] == ["-o", "allexport"]):
        state.all_exported = True
    elif name == "set" and ("+a" in rest or rest[:2] == ["+o", "allexport"]):
        state.all_exported = False
    elif name == "cd" and rest:
        state.cwd = (
            rest[-1] if rest[-1].startswith(("/", "$")) or not state.cwd else f"{state.cwd}/{rest[-1]}"
        )
    elif name in (".", "source") or (
        name in ("module", "conda", "mamba") and rest[:1] in (["load"], ["activate"])
    ):
        state.sourced.append(" ".join(simple.words))


class _Expander:
    def __init__(self, variables: Mapping[str, _Value]) -> None:
        self.variables = variables
        self.unknown: list[str] = []
        self.patterns: list[str] = []

    def one(self, word: Word) -> str:
        """The value of an assignment: no splitting."""
        out = ""
        for at, part in enumerate(word.parts):
            value = self.value(part)
            text = " ".join(value) if isinstance(value, tuple) else value
            out += self.home(text, first=at == 0, colons=True) if _literal(part) else text
        return out

    def fields(self, word: Word) -> list[str]:
        """The words that one word becomes."""
        _no_braces(word)
        if any(_literal(p) and re.search(r"[*?]|\[.*\]", p.text) for p in word.parts):
            self.patterns.append(word.raw)
        found: list[str] = []
        current: str | None = None

        def end() -> None:
            nonlocal current
            if current is not None:
                found.append(current)
                current = None

        for at, part in enumerate(word.parts):
            if _literal(part):
                head = word.assigns if at == 0 else ""
                whole = len(word.parts) == 1
                tail = part.text[len(head) :]
                tail = self.home(tail, first=True, colons=False, whole=whole) if at == 0 else tail
                current = (current or "") + head + tail
                continue
            for value, quoted in self.pieces(part):
                if isinstance(value, tuple):
                    items = list(value) if quoted else [piece for item in value for piece in item.split()]
                elif quoted:
                    items = [value]
                else:
                    if value[:1] in _BLANK:
                        end()
                    items = value.split()
                for number, item in enumerate(items):
                    if number:
                        end()
                    current = (current or "") + item
                if not quoted and isinstance(value, str) and value[-1:] in _BLANK:
                    end()
        end()
        return found

    def pieces(self, part: Part) -> list[tuple[str | tuple[str, ...], bool]]:
        """What a part stands for, each with whether it is kept whole; a default in use by its own parts."""
        if part.quoted or part.opaque or not part.name:
            return [(self.value(part), True)]
        if not self.uses_default(part):
            value = self.value(part)
            return [(value, False)] if value else []
        return [
            piece
            for inner in part.default
            for piece in ([(inner.text, False)] if _literal(inner) else self.pieces(inner))
        ]

    def uses_default(self, part: Part) -> bool:
        operator = part.operator.removeprefix("[@]").removeprefix("[*]")
        if part.name in self.variables and self.variables[part.name] is None:
            return False
        missing = part.name not in self.variables or (
            operator.startswith(":") and self.variables[part.name] == ""
        )
        return not missing if operator.endswith("+") else missing and operator.endswith(("-", "="))

    def value(self, part: Part) -> str | tuple[str, ...]:
        if part.opaque:
            self.unknown.append(part.text)
            return part.text
        if not part.name:
            return part.text
        if self.uses_default(part):
            return self.one(Word(part.default, 0, ""))
        value = self.variables.get(part.name)
        if part.operator.endswith("+") and (part.name not in self.variables or value == ""):
            return ""
        if value is None:
            self.unknown.append(part.text)
            return part.text
        if isinstance(value, tuple) and not part.operator.startswith("["):
            return value[0] if value else ""
        if isinstance(value, tuple) and part.operator.startswith("[*]") and part.quoted:
            return " ".join(value)
        return value

    def home(self, text: str, *, first: bool, colons: bool, whole: bool = True) -> str:
        """A tilde at the beginning (in assignments after a colon too) is the home folder."""
        home = self.variables.get("HOME")
        if not isinstance(home, str):
            return text
        pattern = r"(^|:)~(?=/|:|$)" if colons else r"(^)~(?=/|$)" if whole else r"(^)~(?=/)"
        if not first:
            pattern = r"(:)~(?=/|:|$)"
        return re.sub(pattern, lambda m: m[1] + home, text)


def _literal(part: Part) -> bool:
    return not (part.quoted or part.name or part.opaque)


def _no_braces(word: Word) -> None:
    """Refuse ``{a,b}`` and ``{1..3}`` outside quotes: bash makes several words of one, dash does not."""
    shape = "".join(
        re.sub(r"[^{},.]", "x", p.text) if _literal(p) else "x" * bool(p.text) for p in word.parts
    )
    while inner := re.search(r"\{[^{}]*\}", shape):
        if "," in inner[0] or ".." in inner[0]:
            raise ShellError(
                f"line {word.line}: bash expands the braces in {word.raw}; put the word in quotes"
            )
        shape = shape[: inner.start()] + "x" * len(inner[0]) + shape[inner.end() :]


def plain_words(word: Word) -> list[str]:
    """A word that expands nothing, without its quotes."""
    return ["".join(part.text for part in word.parts)]

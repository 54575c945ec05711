"""The shell's own reading of a text: words, comments, quotes, operators, redirections, variables; and quoting.

bash's rules, as a leaf: nothing is run. What only a running shell can know (a variable that is not set here, a
command substitution) stays in the word as it was typed, and is named.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from sglang_guards.characters import CONTROL

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_OPERATORS = (
    *("&&", "||", "|&", ";;&", ";;", ";&", "<<<", "<<-", "<<", "<&", "<>", "&>>", "&>", ">>", ">&", ">|"),
    *("&", "|", ";", "<", ">", "(", ")"),
)
_REDIRECTIONS = frozenset({"<<<", "<<-", "<<", "<&", "<>", "&>>", "&>", ">>", ">&", ">|", "<", ">"})
_META = " \t\n;&|<>()"
_ANSI = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "f": "\f", "v": "\v"} | {
    c: c for c in "\\'\"?"
}


class ShellError(ValueError):
    """A text that a shell would not take, or whose words only a running shell can tell."""


@dataclass(frozen=True)
class Part:
    """A piece of a word: text, or (`name` set) a parameter with its ``:-``-like operator and default."""

    text: str
    quoted: bool
    name: str = ""
    operator: str = ""
    default: tuple[Part, ...] = ()
    #: ``$(…)`` and its like: nothing but a running shell knows the value.
    opaque: bool = False


@dataclass(frozen=True)
class Word:
    """A word before expansion; `elements` are those of an array assignment ``NAME=(…)``."""

    parts: tuple[Part, ...]
    line: int
    raw: str
    elements: tuple[Word, ...] | None = None

    @property
    def bare(self) -> str:
        """The word where nothing in it is quoted or expanded, else empty."""
        plain = all(not p.quoted and not p.name and not p.opaque for p in self.parts)
        return "".join(p.text for p in self.parts) if plain else ""

    @property
    def assigns(self) -> str:
        """``NAME=`` or ``NAME+=`` where the word is an assignment, else empty."""
        first = self.parts[0] if self.parts else None
        if first is None or first.quoted or first.name or first.opaque:
            return ""
        found = ASSIGNMENT.match(first.text)
        return found[0] if found else ""


@dataclass(frozen=True)
class Raw:
    """A simple command before expansion, with the operators around it."""

    words: tuple[Word, ...]
    redirects: tuple[str, ...]
    before: str
    after: str
    line: int


@dataclass
class _Lexer:
    text: str
    at: int = 0
    line: int = 1
    #: Where the operator read last begins.
    began: int = 0
    heredocs: list[tuple[str, bool]] = field(default_factory=list)

    def here(self) -> str:
        """The character to read, past line continuations; empty at the end."""
        while self.text.startswith("\\\n", self.at):
            self.at += 2
            self.line += 1
        return self.text[self.at : self.at + 1]

    def take(self) -> str:
        c = self.text[self.at : self.at + 1]
        self.at += 1
        self.line += c == "\n"
        return c

    def until(self, stop: str, what: str) -> str:
        """The text up to `stop`, word for word."""
        end = self.text.find(stop, self.at)
        if end < 0:
            raise ShellError(f"line {self.line}: {what} is not closed")
        found = self.text[self.at : end]
        self.line += found.count("\n")
        self.at = end + len(stop)
        return found

    def operator(self) -> str:
        found = ""
        self.began = self.at
        while (c := self.here()) and any(op.startswith(found + c) for op in _OPERATORS):
            found += self.take()
        return found

    def tokens(self) -> Iterator[Word | str]:
        while c := self.here():
            if c in " \t":
                self.take()
            elif c == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif c == "\n":
                self.take()
                yield "\n"
                self.bodies()
            elif c in _META:
                yield self.operator()
            else:
                yield self.word()

    def bodies(self) -> None:
        """Step over the bodies of here-documents."""
        for delimiter, strip in self.heredocs:
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                line = self.text[self.at : end if end >= 0 else len(self.text)]
                self.at = len(self.text) if end < 0 else end + 1
                self.line += 1
                if (line.lstrip("\t") if strip else line) == delimiter:
                    break
        self.heredocs.clear()

    def word(self) -> Word:
        start, line = self.at, self.line
        parts: list[Part] = []
        elements: tuple[Word, ...] | None = None
        while (c := self.here()) and c not in _META:
            parts += self.piece(c)
            if self.here() == "(" and c == "=" and ASSIGNMENT.fullmatch(_plain(parts)):
                elements = self.array()
                break
        return Word(tuple(_merged(parts)), line, self.text[start : self.at], elements)

    def piece(self, c: str) -> list[Part]:
        if c == "\\":
            self.take()
            return [Part(self.take() or "\\", True)]
        if c == "'":
            self.take()
            return [Part(self.until("'", "a single quote"), True)]
        if c == '"':
            return self.double()
        if c == "$":
            return self.dollar(False)
        if c == "`":
            return [self.backticks()]
        return [Part(self.take(), False)]

    def array(self) -> tuple[Word, ...]:
        self.take()
        found: list[Word] = []
        for token in self.tokens():
            if isinstance(token, Word):
                found.append(token)
            elif token == ")":
                return tuple(found)
            elif token != "\n":
                break
        raise ShellError(f"line {self.line}: an array is not closed")

    def double(self) -> list[Part]:
        line = self.line
        self.take()
        parts = [Part("", True)]
        while c := self.here():
            if c == '"':
                self.take()
                return parts
            if c == "$":
                parts += self.dollar(True)
            elif c == "`":
                parts.append(self.backticks(quoted=True))
            elif c == "\\" and self.text[self.at + 1 : self.at + 2] in ("$", "`", '"', "\\"):
                self.take()
                parts.append(Part(self.take(), True))
            else:
                parts.append(Part(self.take(), True))
        raise ShellError(f"line {line}: a double quote is not closed")

    def backticks(self, quoted: bool = False) -> Part:
        start = self.at
        self.take()
        while c := self.take():
            if c == "\\":
                self.take()
            elif c == "`":
                return Part(self.text[start : self.at], quoted, opaque=True)
        raise ShellError(f"line {self.line}: a backtick is not closed")

    def dollar(self, quoted: bool) -> list[Part]:
        start = self.at
        self.take()
        c = self.here()
        if c == "'" and not quoted:
            self.take()
            return [Part(self.ansi(), True)]
        if c == '"' and not quoted:
            return self.double()
        if c in ("(", "["):
            self.balanced(c, ")" if c == "(" else "]")
            return [Part(self.text[start : self.at], quoted, opaque=True)]
        if c == "{":
            return [self.braced(start, quoted)]
        if c and (c.isdigit() or c in "@*#?$!-"):
            self.take()
            return [Part(self.text[start : self.at], quoted, opaque=True)]
        name = ""
        while (c := self.here()) and NAME.fullmatch(name + c):
            name += self.take()
        return [Part(f"${name}", quoted, name=name)] if name else [Part("$", quoted)]

    def braced(self, start: int, quoted: bool) -> Part:
        """``${NAME}``, ``${NAME[@]}`` and the four operators with a default; every other form is opaque."""
        line = self.line
        self.balanced("{", "}")
        raw = self.text[start : self.at]
        found = re.fullmatch(
            r"\$\{([A-Za-z_][A-Za-z0-9_]*)(\[[@*]\])?(?:(:?[-=?+])(.*))?\}", raw.replace("\\\n", ""), re.S
        )
        if found is None or (found[2] and found[3]):
            return Part(raw, quoted, opaque=True)
        default: list[Part] = []
        if found[4]:
            inner = _Lexer(found[4], line=line)
            while c := inner.here():
                if (quoted and c == "'") or (quoted and c not in '"\\$`'):
                    default.append(Part(inner.take(), True))
                else:
                    default += inner.piece(c)
        operator = (found[2] or "") + (found[3] or "")
        return Part(raw, quoted, name=found[1], operator=operator, default=tuple(_merged(default)))

    def balanced(self, opens: str, closes: str) -> None:
        """Step over a bracketed text, quotes and nested brackets included."""
        line, depth = self.line, 0
        while c := self.here():
            if c == "\\":
                self.take()
                self.take()
            elif c == "'" and opens != "{":
                self.take()
                self.until("'", "a single quote")
            elif c == '"':
                self.double()
            else:
                self.take()
                depth += (c == opens) - (c == closes)
                if depth == 0:
                    return
        raise ShellError(f"line {line}: ${opens} is not closed")

    def ansi(self) -> str:
        """The rest of a ``$'…'`` word."""
        out = ""
        while c := self.take():
            if c == "'":
                return out
            if c != "\\":
                out += c
                continue
            rest = self.text[self.at :]
            number = re.match(
                r"x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|([0-7]{1,3})", rest
            )
            if number:
                self.at += len(number[0])
                digits = number[1] or number[2] or number[3]
                out += chr(int(digits, 16) if digits else int(number[4], 8) & 0xFF)
            else:
                escaped = self.take()
                out += _ANSI.get(escaped, "\\" + escaped)
        raise ShellError(f"line {self.line}: a $' quote is not closed")


def _plain(parts: Sequence[Part]) -> str:
    return "".join(p.text for p in parts) if not any(p.quoted or p.name or p.opaque for p in parts) else ""


def _merged(parts: Iterable[Part]) -> Iterator[Part]:
    """Neighbouring texts of the same kind as one part."""
    last: Part | None = None
    for part in parts:
        plain = not part.name and not part.opaque
        if last and plain and not last.name and not last.opaque and last.quoted == part.quoted:
            last = Part(last.text + part.text, last.quoted)
            continue
        if last:
            yield last
        last = part
    if last:
        yield last


def commands(text: str) -> list[Raw]:
    """The simple commands of a text in their order; brackets and reserved words are left to the reader."""
    lexer = _Lexer(text)
    found: list[Raw] = []
    words: list[Word] = []
    redirects: list[str] = []
    before, redirection = "", ""
    for token in lexer.tokens():
        if isinstance(token, Word):
            if redirection:
                redirects.append(f"{redirection}{token.raw}")
                if redirection.endswith(("<<", "<<-")):
                    delimiter = "".join(p.text for p in token.parts)
                    lexer.heredocs.append((delimiter, redirection.endswith("-")))
                redirection = ""
            else:
                words.append(token)
            continue
        if redirection:
            raise ShellError(f"line {lexer.line}: the redirection {redirection} names no file")
        if token in _REDIRECTIONS:
            number = words[-1] if words and _touches(words[-1], lexer) else None
            if number is not None:
                words.pop()
            redirection = (number.bare if number else "") + token
            continue
        if words or redirects:
            line = words[0].line if words else lexer.line
            found.append(Raw(tuple(words), tuple(redirects), before, token, line))
            before = token
        elif token != "\n" or before not in ("|", "|&", "&&", "||"):  # those wait for the next line
            before = token
        words, redirects = [], []
    if redirection:
        raise ShellError(f"line {lexer.line}: the redirection {redirection} names no file")
    if words or redirects:
        found.append(Raw(tuple(words), tuple(redirects), before, "", words[0].line if words else lexer.line))
    return found


def _touches(word: Word, lexer: _Lexer) -> bool:
    """Whether `word` is the number of the redirection just read: digits with no blank between."""
    return word.bare.isdigit() and lexer.text[: lexer.began].endswith(word.raw)


def shown(words: Iterable[str]) -> str:
    """Words as one line to paste; an assignment keeps its name outside the quotes."""
    return " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    name, sign, value = word.partition("=")
    if sign and NAME.fullmatch(name):
        return f"{name}={_plainly(value) if value else ''}"
    return _plainly(word)


def _plainly(word: str) -> str:
    """In quotes where needed; what would steer a terminal is spelled out, as bash reads it back."""
    if not CONTROL.search(word):
        return shlex.quote(word)
    escaped = word.replace("\\", "\\\\").replace("'", "\\'")
    return "$'" + CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", escaped) + "'"

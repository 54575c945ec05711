"""Classes of `srt/models/*.py` as a graph: where a name is defined, who inherits from whom.

Nothing is imported. Each method is cut out of its file and parsed alone, so following one architecture from its entry
class to its decoder layer costs a few milliseconds although the files are long.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sglang_guards.source.syntax.nodes import children, walk
from sglang_guards.source.syntax.slicing import block_ends, parse_at
from sglang_guards.source.tree import Code, Source

MODELS = "sglang/srt/models"
_MODULE = "sglang.srt.models"
_IMPORT = re.compile(r"from (sglang\.srt\.models[\w.]*) import (\([^)]*\)|[^\n(]+)")
_WHOLE = re.compile(r"import sglang\.srt\.models\.([\w.]+) as (\w+)")
_ASSIGNED = re.compile(r"\w+[ ]*(?::[^=\n]+)?=(?!=)")
_TOP = re.compile(r"^(?:(class|def) (\w+)|(\w+)[ ]*(?::[^=\n]+)?=(?!=))", re.MULTILINE)
#: Calls that hold the layers of a model; a class that is built inside one of them is an element of the stack.
STACKS = frozenset({"make_layers", "make_layers_non_pp", "ModuleList"})


@dataclass(frozen=True)
class Cls:
    """A class of a model file."""

    rel: str
    name: str


@dataclass(frozen=True)
class Fn:
    """A function of a model file."""

    rel: str
    name: str


Classes = frozenset[Cls]


def _places(text: str, needle: str) -> Iterator[int]:
    place = text.find(needle)
    while place >= 0:
        yield place
        place = text.find(needle, place + 1)


def _head(text: str, words: str, depth: int = 0) -> int | None:
    """Where the line that begins with `words` at this indentation begins; of several the last, which counts."""
    found = None
    needle = "\n" + " " * depth + words
    places = [place + 1 for place in _places(text, needle)]
    for place in ([0] if text.startswith(needle[1:]) else []) + places:
        end = place + len(needle) - 1
        after = text[end : end + 1]
        if not (after.isalnum() or after == "_"):
            found = place
    return found


def _alike(stem: str, name: str) -> int:
    """How many leading letters a file and a class share: `qwen3_5` and `Qwen3_5MoeForConditionalGeneration`."""
    stem, name = stem.replace("_", "").lower(), name.replace("_", "").lower()
    length = 0
    while length < len(stem) and name.startswith(stem[: length + 1]):
        length += 1
    return length


class Graph:
    """Names, bases and methods of the model files of one source tree."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._names: dict[tuple[str, str], Any] = {}
        #: What others have worked out about this tree, by a key of theirs.
        self.memo: dict[Any, Any] = {}
        self._below: dict[ast.AST, tuple[tuple[ast.Call, bool], ...]] = {}
        self._imports: dict[str, Mapping[str, tuple[str, str]]] = {}
        self._tops: dict[str, Mapping[tuple[str, str], int]] = {}
        self._blocks: dict[Cls, tuple[int, str]] = {}

    # -- where things are -----------------------------------------------------------------------------------

    def files(self) -> Sequence[str]:
        return self.source.files(MODELS, "*.py")

    def holder(self, name: str) -> Cls | None:
        """The class `name` of the model file that registers it, else of the first that defines it.

        Files are searched as bytes, those whose names are most like the class's first: there are 200 of them.
        """
        first = None
        needles = (b"\nclass " + name.encode() + b"(", b"\nclass " + name.encode() + b":")

        def likeness(rel: str) -> tuple[int, str]:
            stem = rel.rpartition("/")[2].removesuffix(".py")
            return -_alike(stem, name), stem

        for pattern in ("*.py", "*/*.py"):
            for rel in sorted(self.source.files(MODELS, pattern), key=likeness):
                content = self.source.data(rel)
                if content is not None and any(needle in content for needle in needles):
                    found = Cls(rel, name)
                    registered = content.rpartition(b"\nEntryClass")[2]
                    if re.search(rb"\b" + name.encode() + rb"\b", registered) and registered != content:
                        return found
                    first = first or found
        return first

    def entries(self, rel: str) -> list[Cls]:
        """The architectures that a file registers (`EntryClass`)."""
        code = self.source.statement(rel, r"^EntryClass\b")
        if code is None or not isinstance(code.node, (ast.Assign, ast.AnnAssign)) or code.node.value is None:
            return []
        names = [n.id for n in walk(code.node.value) if isinstance(n, ast.Name)]
        return [found for name in names if isinstance(found := self.resolve(rel, name), Cls)]

    def imports(self, rel: str) -> Mapping[str, tuple[str, str]]:
        """Local name -> (file, name there) for imports from other model files."""
        if rel not in self._imports:
            table: dict[str, tuple[str, str]] = {}
            text = self.source.text(rel) or ""
            for found in filter(
                None, (_IMPORT.match(text, place) for place in _places(text, f"from {_MODULE}"))
            ):
                module = found[1].removeprefix(_MODULE).lstrip(".")
                target = self._file(module.replace(".", "/"))
                for item in re.sub(r"#[^\n]*", "", found[2]).strip("()").split(","):
                    parts = item.split()
                    if parts:
                        table[parts[-1]] = (target, parts[0])
            for place in _places(text, f"import {_MODULE}."):
                if whole := _WHOLE.match(text, place):
                    table[whole[2]] = (f"{MODELS}/.py", whole[1].replace(".", "/"))
            self._imports[rel] = table
        return self._imports[rel]

    def _file(self, module: str) -> str:
        """The file of a module, or of a package."""
        package = f"{MODELS}/{module}/__init__.py"
        return package if module and self.source.exists(package) else f"{MODELS}/{module}.py"

    def module(self, rel: str, name: str) -> str | None:
        """The file of a model module that is imported whole, in either of the two ways to write that."""
        target, there = self.imports(rel).get(name, ("", ""))
        return f"{MODELS}/{there}.py" if target == f"{MODELS}/.py" else None

    def named(self, rel: str, dotted: str) -> Cls | Fn | Classes | None:
        """`resolve` for `Name` and for `module.Name`."""
        holder, _, name = dotted.rpartition(".")
        if not holder:
            return self.resolve(rel, name)
        module = self.module(rel, holder)
        return self.resolve(module, name) if module is not None else None

    def resolve(self, rel: str, name: str, depth: int = 0) -> Cls | Fn | Classes | None:
        """What a module-level name of a file stands for: a class, a function, or the classes in a table."""
        key = (rel, name)
        if key not in self._names:
            self._names[key] = None  # a cycle of imports ends here
            self._names[key] = self._resolve(rel, name, depth)
        found: Cls | Fn | Classes | None = self._names[key]
        return found

    def _resolve(self, rel: str, name: str, depth: int) -> Cls | Fn | Classes | None:
        text = self.source.text(rel)
        if text is None or not name or depth > 6:
            return None
        heads = self._heads(rel)
        if ("class", name) in heads:
            return Cls(rel, name)
        if ("def", name) in heads:
            return Fn(rel, name)
        if name in self.imports(rel):
            target, there = self.imports(rel)[name]
            return self.resolve(target, there, depth + 1)
        place = heads.get(("", name))
        if place is None:
            return None
        value = getattr(parse_at(text, place, 0), "value", None)
        names = [n.id for n in walk(value) if isinstance(n, ast.Name)] if value is not None else []
        resolved = [self.resolve(rel, n, depth + 1) for n in names if n != name]
        return frozenset(f for f in resolved if isinstance(f, Cls))

    def _heads(self, rel: str) -> Mapping[tuple[str, str], int]:
        """Where the classes, functions and assigned names of a module begin; of several the last, which counts."""
        if rel not in self._tops:
            found = _TOP.finditer(self.source.text(rel) or "")
            self._tops[rel] = {(m[1] or "", m[2] or m[3]): m.start() for m in found}
        return self._tops[rel]

    # -- classes --------------------------------------------------------------------------------------------

    def text(self, cls: Cls) -> str:
        """The class's own text."""
        return self._block(cls)[1]

    def _block(self, cls: Cls) -> tuple[int, str]:
        """Where the class begins in its file, and its text."""
        if cls not in self._blocks:
            text = self.source.text(cls.rel) or ""
            start = _head(text, "class " + cls.name)
            self._blocks[cls] = (
                (0, "") if start is None else (start, text[start : next(block_ends(text, start, 0))])
            )
        return self._blocks[cls]

    def own(self, cls: Cls, name: str) -> Code | None:
        """A method that the class itself defines."""
        key = (cls.rel, f"{cls.name}.{name}")
        if key not in self._names:
            start, block = self._block(cls)
            place = _head(block, "def " + name, 4)
            made = None
            if place is not None:
                made = Code(cls.rel, parse_at(self.source.text(cls.rel) or "", start + place, 4))
            self._names[key] = made
        found: Code | None = self._names[key]
        return found

    def function(self, fn: Fn) -> Code | None:
        """A function's code."""
        key = (fn.rel, f"def {fn.name}")
        if key not in self._names:
            text = self.source.text(fn.rel) or ""
            place = _head(text, "def " + fn.name)
            self._names[key] = None if place is None else Code(fn.rel, parse_at(text, place, 0))
        found: Code | None = self._names[key]
        return found

    def mro(self, cls: Cls) -> tuple[Cls, ...]:
        """The class and its bases among the model files, nearest first."""
        key = (cls.rel, "mro " + cls.name)
        if key not in self._names:
            self._names[key] = (cls,)
            header = re.match(r"class \w+\(([^)]*)\)\s*:", self.text(cls))
            order = [cls]
            for name in re.findall(r"(?<![\w.])(\w+(?:\.\w+)?)(?=\s*(?:,|$))", header[1]) if header else []:
                base = self.named(cls.rel, name)
                if isinstance(base, Cls) and base != cls:
                    order += [b for b in self.mro(base) if b not in order]
            self._names[key] = tuple(order)
        found: tuple[Cls, ...] = self._names[key]
        return found

    def method(self, cls: Cls, name: str, after: Cls | None = None) -> tuple[Cls, Code] | None:
        """The method as Python would find it, with the class that defines it; `after` continues as super() does."""
        order = self.mro(cls)
        if after is not None:
            order = order[order.index(after) + 1 :] if after in order else ()
        for owner in order:
            code = self.own(owner, name)
            if code is not None:
                return owner, code
        return None

    def calls(self, code: Code) -> Sequence[tuple[ast.Call, bool]]:
        """`calls` of a method or function, remembered."""
        key = (code.rel, f"calls {code.node.lineno}")
        if key not in self._names:
            self._names[key] = tuple(calls(code.node))
        found: Sequence[tuple[ast.Call, bool]] = self._names[key]
        return found

    def calls_below(self, node: ast.AST) -> Sequence[tuple[ast.Call, bool]]:
        """`calls` of any node of a tree that this graph has parsed, remembered."""
        if node not in self._below:
            self._below[node] = tuple(calls(node))
        return self._below[node]

    def nodes(self, code: Code) -> Sequence[ast.AST]:
        """`walk` of a method or function, remembered."""
        key = (code.rel, f"nodes {code.node.lineno}")
        if key not in self._names:
            self._names[key] = walk(code.node)
        found: Sequence[ast.AST] = self._names[key]
        return found

    def attribute(self, cls: Cls, name: str) -> tuple[Cls, ast.expr] | None:
        """A class attribute's value."""
        for owner in self.mro(cls):
            own = self.text(owner)
            place = _head(own, name, 4)
            if place is not None and _ASSIGNED.match(own, place + 4):
                value = getattr(parse_at(own, place, 4), "value", None)
                if value is not None:
                    return owner, value
        return None


def arguments(node: ast.stmt) -> list[str]:
    """Names of a function's parameters."""
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return []
    args = node.args
    return [a.arg for a in (*args.posonlyargs, *args.args, *args.kwonlyargs)]


def calls(node: ast.AST) -> Iterator[tuple[ast.Call, bool]]:
    """Every call below a node, and whether it happens inside the expression that builds a stack of layers."""
    stack: list[tuple[ast.AST, bool]] = [(node, False)]
    while stack:
        here, inside = stack.pop()
        if isinstance(here, ast.Call):
            yield here, inside
            inside = inside or last_name(here.func) in STACKS
        stack += [(child, inside) for child in children(here)]


def last_name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""

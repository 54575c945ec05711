"""Facts about an SGLang source tree, read from its text and never from its version number.

A nightly, a fork and a patched tree answer for themselves. Nothing of SGLang is imported; each probe cuts the
few functions that it needs out of a file and parses only those, because parsing a whole `server_args.py` takes
longer than everything else that happens at start-up.
"""

from __future__ import annotations

import ast
import fnmatch
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import TypeVar

from sglang_guards.source.syntax.slicing import Unknown, block_ends, field_names, parse_at, within

__all__ = ["PROBES", "Answer", "Code", "Items", "Probe", "Source", "Unknown", "decided", "find", "probe"]

#: Modules that register probes, in the order in which they are searched.
PROBE_MODULES = (
    "probes.fused_sum",
    "probes.fused_sum_kernel",
    "probes.args_resolution",
    "probes.moe_runner",
    "probes.allreduce_fusion",
    "probes.allreduce_fusion_sums",
    "probes.flag_readers",
    "probes.moe_faults",
    "probes.launch_faults",
    "probes.launch_path",
    "probes.quant_method",
    "probes.runner_pairs",
    "probes.series_marks",
    "probes.eplb",
    "probes.overlap",
    "probes.routed_scaling",
    "probes.attention_backends",
    "probes.speculative_draft",
    "probes.pipeline",
    "probes.fp8_scale",
    "probes.reductions",
    "probes.tile_files",
    "models.fusion_contract",
)


@dataclass(frozen=True)
class Answer:
    """One fact. `value` is None where the source could not be understood; `where` is the deciding line."""

    value: bool | None
    where: str | None = None
    detail: str = ""


@dataclass(frozen=True)
class Items:
    """A fact that is a list of names; `values` is None where it could not be read."""

    values: tuple[str, ...] | None
    where: str | None = None


@dataclass(frozen=True)
class Probe:
    name: str
    doc: str
    #: Takes the source, and the probe's arguments by name where it has any.
    fn: Callable[..., Answer | Items]


def decided(yes: str | None, no: str | None, detail: str = "") -> Answer:
    """True for a construct that was seen, False for its counterpart; Unknown for neither and for both."""
    if (yes is None) == (no is None):
        raise Unknown(
            "neither of the known constructs was found" if yes is None else "both constructs were found"
        )
    return Answer(yes is not None, yes or no, detail)


PROBES: dict[str, Probe] = {}
_Fn = TypeVar("_Fn", bound=Callable[..., "Answer | Items"])
#: A probe and its arguments, as answers are remembered.
#: What a definition begins with.
_DEFINES = ("def", "class", "async def")
_Question = tuple[str, tuple[tuple[str, str], ...]]


def probe(name: str, doc: str) -> Callable[[_Fn], _Fn]:
    """Register a function of a Source as the probe `name`."""

    def register(fn: _Fn) -> _Fn:
        PROBES[name] = Probe(name, doc, fn)
        return fn

    return register


@dataclass(frozen=True)
class Code:
    """A parsed piece of one file; line numbers of `node` are those of the file."""

    rel: str
    node: ast.stmt

    def where(self, node: ast.AST | None = None) -> str:
        line = getattr(self.node if node is None else node, "lineno", 0)
        return f"{self.rel}:{line}"


class Source:
    """One SGLang source tree. Every file is read once, every probe runs once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._texts: dict[str, str | None] = {}
        self._lines: dict[str, Sequence[str]] = {}
        self._files: dict[tuple[str, str], Sequence[str]] = {}
        self._codes: dict[tuple[str, str], Code | None] = {}
        self._answers: dict[_Question, Answer | Items] = {}
        #: Intermediate results that several probes of one family share.
        self.memo: dict[str, object] = {}

    @cached_property
    def version(self) -> str:
        """The version as installed, «unknown» where the tree does not say."""
        infos = sorted(self.root.parent.glob("sglang-*.dist-info"))
        if len(infos) == 1:
            return infos[0].name[len("sglang-") : -len(".dist-info")]
        for rel in ("sglang/_version.py", "sglang/version.py"):
            pattern = r"^__version__\s*=.*?['\"]([^'\"]+)['\"]"
            if found := re.search(pattern, self.text(rel) or "", re.MULTILINE):
                return found[1]
        return "unknown"

    # -- questions ------------------------------------------------------------------------------------------

    def ask(self, name: str, **arguments: str) -> Answer:
        """The answer of probe `name`; never raises."""
        found = self._run(name, arguments)
        return found if isinstance(found, Answer) else Answer(None, found.where, f"{name} is a list of names")

    def list(self, name: str, **arguments: str) -> Items:
        """The names that probe `name` lists; never raises."""
        found = self._run(name, arguments)
        return found if isinstance(found, Items) else Items(None, found.where)

    def _run(self, name: str, arguments: Mapping[str, str]) -> Answer | Items:
        question = (name, tuple(sorted(arguments.items())))
        if question not in self._answers:
            self._answers[question] = self._ask(name, arguments)
        return self._answers[question]

    def _ask(self, name: str, arguments: Mapping[str, str]) -> Answer | Items:
        try:
            found = find_probe(name)
            return found.fn(self, **arguments) if found else Answer(None, None, f"there is no probe {name}")
        except Unknown as why:
            return Answer(None, None, str(why))
        except SyntaxError as why:
            return Answer(None, None, f"cannot be parsed: {why.msg}")
        except Exception as why:  # noqa: BLE001 - a probe may never stop a server
            return Answer(None, None, f"probe {name} failed: {type(why).__name__}: {why}")

    def flags(self) -> frozenset[str] | None:
        """Names of all server arguments that this tree knows (argparse's `dest`), None if none was found."""
        names = field_names(self.text("sglang/srt/server_args.py") or "", r"ServerArgs")
        for rel in self.files("sglang/srt/arg_groups/fields", "*.py"):
            names |= field_names(self.text(rel) or "", r"\w+")
        return frozenset(names) or None

    # -- reading --------------------------------------------------------------------------------------------

    def text(self, rel: str) -> str | None:
        """The file's text, newlines unified, None where it cannot be read. `rel` begins with `sglang/`."""
        if rel not in self._texts:
            data = self.data(rel)
            if data is None:
                self._texts[rel] = None
            else:
                text = data.decode("utf-8", errors="replace")
                self._texts[rel] = text.replace("\r\n", "\n") if "\r" in text else text
        return self._texts[rel]

    def data(self, rel: str) -> bytes | None:
        """The file's bytes, which are not kept: for searches through many files."""
        try:
            return self.path(rel).read_bytes()
        except OSError:
            return None

    def lines(self, rel: str) -> Sequence[str]:
        if rel not in self._lines:
            self._lines[rel] = (self.text(rel) or "").split("\n")
        return self._lines[rel]

    def path(self, rel: str) -> Path:
        return self.root.joinpath(*rel.split("/")[1:])

    def exists(self, rel: str) -> bool:
        return self.path(rel).exists()

    def files(self, folder: str, pattern: str) -> Sequence[str]:
        """Files below `folder` that match, sorted, as `sglang/…`; empty where there is no such folder."""
        if (folder, pattern) not in self._files:
            self._files[folder, pattern] = self._list_files(folder, pattern)
        return self._files[folder, pattern]

    def _list_files(self, folder: str, pattern: str) -> Sequence[str]:
        if "/" in pattern:
            found = (p.relative_to(self.root).as_posix() for p in self.path(folder).glob(pattern))
            return sorted(f"sglang/{rel}" for rel in found)
        try:  # one folder of 200 files: a Path for each would take milliseconds
            return sorted(
                f"{folder}/{name}" for name in fnmatch.filter(os.listdir(self.path(folder)), pattern)
            )
        except OSError:
            return []

    def first(self, *candidates: str) -> str | None:
        """The first candidate that exists: files move between folders from release to release."""
        return next((rel for rel in candidates if self.text(rel) is not None), None)

    def line(self, rel: str, pattern: str) -> int | None:
        """Number of the first line in which the pattern begins (`^` and `$` match at lines)."""
        text = self.text(rel) or ""
        found = re.search(pattern, text, re.MULTILINE)
        return text.count("\n", 0, found.start()) + 1 if found else None

    def need(self, *candidates: str) -> str:
        """`first`, or Unknown."""
        rel = self.first(*candidates)
        if rel is None:
            raise Unknown(f"{candidates[0]} is not in this tree")
        return rel

    def function(self, candidates: str | Sequence[str], qualname: str) -> Code:
        """The function, class or «Class.method» of the first file that exists; Unknown if it has none."""
        found = self.maybe(candidates, qualname)
        if found is None:
            raise Unknown(
                f"{qualname} was not found in {candidates if isinstance(candidates, str) else candidates[0]}"
            )
        return found

    def maybe(self, candidates: str | Sequence[str], qualname: str) -> Code | None:
        """`function`, with None where it is missing; SyntaxError where it cannot be parsed."""
        rel = self.first(*([candidates] if isinstance(candidates, str) else candidates))
        if rel is None:
            return None
        if (rel, qualname) not in self._codes:
            self._codes[rel, qualname] = self._cut(rel, qualname)
        return self._codes[rel, qualname]

    def _cut(self, rel: str, qualname: str) -> Code | None:
        text = self.text(rel) or ""
        start, inside, stop, depth = 0, 0, len(text), 0
        for name in qualname.split("."):
            found = list(_heads(text, name, inside, stop))
            if not found:
                return None
            depth = min(indent for _, indent, _ in found)
            start, _, inside = [head for head in found if head[1] == depth][-1]  # of two the later one counts
            stop = min(stop, next(block_ends(text, start, depth)))
        return Code(rel, parse_at(text, start, depth))

    def naming(self, code: Code, word: str) -> Sequence[ast.stmt]:
        """The innermost statements of a piece of code whose text holds the word, in order."""
        lines = self.lines(code.rel)
        hits = [n for n in range(code.node.lineno, (code.node.end_lineno or 0) + 1) if word in lines[n - 1]]
        return within([code.node], hits)

    def statement(self, rel: str, pattern: str) -> Code | None:
        """The statement that begins at the first line matching `pattern` (which begins with `^`)."""
        text = self.text(rel) or ""
        found = re.search(pattern, text, re.MULTILINE)
        if not found:
            return None
        depth = len(found[0]) - len(found[0].lstrip(" "))
        return Code(rel, parse_at(text, found.start(), depth))


def _heads(text: str, name: str, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Where a function or class of this name is defined: start of the line, indentation, end of the name. Looks for
    the name first, which is much faster than a pattern on every line of a long file."""
    at = text.find(f" {name}", start, stop)
    while at >= 0:
        line, end = text.rfind("\n", 0, at) + 1, at + 1 + len(name)
        head = text[line:at]
        kind = head.lstrip(" ")
        if kind in _DEFINES and line >= start and not (text[end : end + 1] + "_").isidentifier():
            yield line, len(head) - len(kind), end
        at = text.find(f" {name}", at + 1, stop)


def find_probe(name: str) -> Probe | None:
    """The probe, importing the modules that hold probes only as far as needed."""
    for module in PROBE_MODULES:
        if name in PROBES:
            break
        importlib.import_module(f"sglang_guards.source.{module}")
    return PROBES.get(name)


def find(path: Path | None = None) -> Source | None:
    """The SGLang tree in `path` (the folder `sglang/` or the one that holds it), or the installed one.

    The installed package is located as Python would locate it, without importing it.
    """
    candidates = [path / "sglang", path] if path else [Path(place) for place in _installed()]
    return next((Source(place) for place in candidates if (place / "srt").is_dir()), None)


def _installed() -> Sequence[str]:
    """Folders of the package `sglang`: where it was imported from, on sys.path, by an editable install's finder."""
    places = [*getattr(sys.modules.get("sglang"), "__path__", ())]
    specs: tuple[Callable[[], ModuleSpec | None], ...] = (
        lambda: PathFinder.find_spec("sglang", sys.path),
        lambda: importlib.util.find_spec("sglang"),
    )
    for locate in specs:
        try:
            spec = locate()
        except (ImportError, ValueError, AttributeError):
            continue
        places += (spec.submodule_search_locations if spec else None) or ()
    return places

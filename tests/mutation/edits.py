"""Edits that keep the behaviour of a Python file, made around one line of it: what a refactoring would do.

Each takes a `Place` and gives the new texts of the files that it changes, or None where it does not apply. Comments
are lost wherever a function is printed anew; no probe may need them.
"""

from __future__ import annotations

import ast
import copy
import functools
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass

Texts = dict[str, str]
Function = ast.FunctionDef | ast.AsyncFunctionDef


@functools.lru_cache(maxsize=64)
def parsed(text: str) -> ast.Module:
    return ast.parse(text)


@dataclass(frozen=True)
class Place:
    """A line of a file that a probe cites."""

    rel: str
    text: str
    line: int

    @property
    def chain(self) -> list[ast.stmt]:
        """Statements around the line, outermost first."""
        found: list[ast.stmt] = []
        body: list[ast.stmt] = parsed(self.text).body
        while True:
            here = next((n for n in body if _first(n) <= self.line <= (n.end_lineno or 0)), None)
            if here is None:
                return found
            found.append(here)
            body = list(_nested(here))

    @property
    def function(self) -> Function | None:
        """The outermost function around the line."""
        return next((n for n in self.chain if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))), None)

    @property
    def owner(self) -> ast.ClassDef | None:
        return next((n for n in self.chain if isinstance(n, ast.ClassDef)), None)

    def replaced(self, old: ast.stmt, new: list[ast.stmt]) -> Texts:
        """The file with one statement printed anew."""
        lines = self.text.split("\n")
        pad = " " * old.col_offset
        printed = [ast.unparse(ast.fix_missing_locations(node)) for node in new]
        fresh = [pad + line if line else line for part in printed for line in part.split("\n")]
        return {self.rel: "\n".join([*lines[: _first(old) - 1], *fresh, *lines[(old.end_lineno or 0) :]])}


def _first(node: ast.stmt) -> int:
    decorators = getattr(node, "decorator_list", [])
    return min([node.lineno, *(d.lineno for d in decorators)])


def _nested(node: ast.stmt) -> Iterator[ast.stmt]:
    for name in ("body", "orelse", "finalbody"):
        yield from getattr(node, name, [])
    for handler in getattr(node, "handlers", []):
        yield from handler.body


def _edited(place: Place, change: Callable[[Function, Place], bool]) -> Texts | None:
    """The file with the function around the line changed in place by `change`, which says whether it could."""
    if place.function is None:
        return None
    made = copy.deepcopy(place.function)
    return place.replaced(place.function, [made]) if change(made, place) else None


def _doc_and_rest(node: Function) -> tuple[list[ast.stmt], list[ast.stmt]]:
    cut = 1 if ast.get_docstring(node) is not None else 0
    return node.body[:cut], node.body[cut:]


def _is_generator(node: Function) -> bool:
    return any(isinstance(n, (ast.Yield, ast.YieldFrom, ast.Await)) for n in ast.walk(node))


def _uses_super(node: Function) -> bool:
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return bool(names & {"super", "__class__", "locals"})


def _handed_on(arguments: ast.arguments, drop_first: bool) -> str:
    given = [a.arg for a in (*arguments.posonlyargs, *arguments.args)][1 if drop_first else 0 :]
    if arguments.vararg:
        given.append(f"*{arguments.vararg.arg}")
    given += [f"{a.arg}={a.arg}" for a in arguments.kwonlyargs]
    if arguments.kwarg:
        given.append(f"**{arguments.kwarg.arg}")
    return ", ".join(given)


def _decorated(node: Function) -> set[str]:
    return {ast.unparse(d) for d in node.decorator_list}


# -- the edits ---------------------------------------------------------------------------------------------


def reprint(place: Place) -> Texts | None:
    """The function printed by another formatter: one line per statement, no comments."""
    return _edited(place, lambda node, _: True)


@functools.lru_cache(maxsize=256)
def _ruff(text: str, width: int) -> str:
    command = [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length", str(width), "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def _reformatted(place: Place, width: int) -> Texts | None:
    node = place.function
    if node is None:
        return None
    lines = place.text.split("\n")
    first, last = _first(node) - 1, node.end_lineno or 0
    pad = " " * node.col_offset
    made = _ruff(textwrap.dedent("\n".join(lines[first:last])), width - node.col_offset).rstrip("\n")
    block = [pad + line if line else line for line in made.split("\n")]
    return {place.rel: "\n".join([*lines[:first], *block, *lines[last:]])}


def reformat_79(place: Place) -> Texts | None:
    return _reformatted(place, 79)


def reformat_120(place: Place) -> Texts | None:
    return _reformatted(place, 120)


def body_into_helper(place: Place) -> Texts | None:
    """`def f(a): …` becomes `def f(a): return _f_body(a)`."""
    node = place.function
    if node is None or _is_generator(node) or _uses_super(node):
        return None
    method = place.owner is not None
    if _decorated(node) & {"classmethod", "property", "cached_property"} or node.name.startswith("__"):
        return None
    static = "staticmethod" in _decorated(node)
    helper = copy.deepcopy(node)
    helper.name = f"_{node.name.lstrip('_')}_body"
    outer = copy.deepcopy(node)
    if not static:
        # a kernel's or a registration's decorator stays with the name that callers use; a jitted helper needs it too
        helper.decorator_list = [d for d in helper.decorator_list if "jit" in ast.unparse(d)]
    owner = (
        f"{node.args.args[0].arg}."
        if method and not static
        else f"{place.owner.name}."
        if place.owner
        else ""
    )
    call = f"return {owner}{helper.name}({_handed_on(node.args, method and not static)})"
    outer.body = [*_doc_and_rest(outer)[0], *ast.parse(f"def f():\n    {call}").body[0].body]  # type: ignore[attr-defined]
    return place.replaced(node, [helper, outer])


def body_into_closure(place: Place) -> Texts | None:
    """The body moves into a nested function that is called at once."""
    node = place.function
    if node is None or _is_generator(node) or _uses_super(node) or _jitted(node):
        return None
    outer = copy.deepcopy(node)
    doc, rest = _doc_and_rest(outer)
    inner = copy.deepcopy(node)
    inner.name, inner.decorator_list, inner.body, inner.returns = "inner", [], rest, None
    call = ast.parse(f"def f():\n    return inner({_handed_on(node.args, False)})").body[0].body  # type: ignore[attr-defined]
    outer.body = [*doc, inner, *call]
    return place.replaced(node, [outer])


def _jitted(node: Function) -> bool:
    return any("jit" in ast.unparse(d) for d in node.decorator_list)


def _at(node: Function, place: Place, kind: type[ast.stmt]) -> list[ast.stmt]:
    """Statements of a kind in a function that hold the line, outermost first, chains of elif counted once."""
    inside = [n for n in ast.walk(node) if isinstance(n, kind)]
    elifs = {id(n.orelse[0]) for n in inside if isinstance(n, ast.If) and len(n.orelse) == 1}
    held = [n for n in inside if n.lineno <= place.line <= (n.end_lineno or 0) and id(n) not in elifs]
    return sorted(held, key=lambda n: n.lineno)


def _if_at(node: Function, place: Place) -> ast.If | None:
    """The innermost `if` that holds the line."""
    held = _at(node, place, ast.If)
    return held[-1] if held and isinstance(held[-1], ast.If) else None


def _swap(node: Function, old: ast.stmt, new: list[ast.stmt]) -> bool:
    for parent in ast.walk(node):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(parent, name, None)
            if isinstance(block, list) and any(item is old for item in block):
                at = next(i for i, item in enumerate(block) if item is old)
                block[at : at + 1] = new
                return True
    return False


def _matched(chain: ast.If) -> ast.Match:
    cases = []
    here: ast.stmt = chain
    while isinstance(here, ast.If):
        cases.append(ast.match_case(ast.MatchAs(), here.test, here.body))
        rest = here.orelse
        if len(rest) != 1 or not isinstance(rest[0], ast.If):
            if rest:
                cases.append(ast.match_case(ast.MatchAs(), None, rest))
            break
        here = rest[0]
    return ast.Match(ast.Constant(True), cases)


def _to_match(which: int) -> Callable[[Function, Place], bool]:
    def change(node: Function, place: Place) -> bool:
        held = _at(node, place, ast.If)
        return (
            bool(held)
            and (which == 0 or len(held) > 1)
            and isinstance(held[which], ast.If)
            and _swap(node, held[which], [_matched(held[which])])  # type: ignore[arg-type]
        )

    return change


def outer_if_to_match(place: Place) -> Texts | None:
    return _edited(place, _to_match(0))


def inner_if_to_match(place: Place) -> Texts | None:
    return _edited(place, _to_match(-1))


def every_if_to_match(place: Place) -> Texts | None:
    """Every `if` at the top of the function's body becomes a `match`."""

    def change(node: Function, _: Place) -> bool:
        found = [n for n in node.body if isinstance(n, ast.If)]
        return bool(found) and all(_swap(node, n, [_matched(n)]) for n in found)

    return _edited(place, change)


def negate_if(place: Place) -> Texts | None:
    """`if a: x else: y` becomes `if not a: y else: x`."""

    def change(node: Function, place: Place) -> bool:
        one = _if_at(node, place)
        if one is None:
            return False
        one.test = ast.UnaryOp(ast.Not(), one.test)
        one.body, one.orelse = one.orelse or [ast.Pass()], one.body
        return True

    return _edited(place, change)


def test_into_variable(place: Place) -> Texts | None:
    """`if a and b:` becomes `taken = a and b` and `if taken:`."""

    def change(node: Function, place: Place) -> bool:
        one = _if_at(node, place)
        if one is None:
            return False
        keep = ast.Assign([ast.Name("taken", ast.Store())], one.test, lineno=one.lineno)
        one.test = ast.Name("taken", ast.Load())
        return _swap(node, one, [keep, one])

    return _edited(place, change)


def test_into_walrus(place: Place) -> Texts | None:
    def change(node: Function, place: Place) -> bool:
        one = None if _jitted(node) else _if_at(node, place)
        if one is None:
            return False
        one.test = ast.NamedExpr(ast.Name("taken", ast.Store()), one.test)
        return True

    return _edited(place, change)


def test_into_lambda(place: Place) -> Texts | None:
    """The test is asked through a small function."""

    def change(node: Function, place: Place) -> bool:
        one = None if _jitted(node) else _if_at(node, place)
        if one is None:
            return False
        asked = ast.parse("lambda: 0", mode="eval").body
        assert isinstance(asked, ast.Lambda)
        asked.body = one.test
        one.test = ast.Call(asked, [], [])
        return True

    return _edited(place, change)


def value_into_variable(place: Place) -> Texts | None:
    """`x = f(…)` becomes `kept = f(…)` and `x = kept`; returns alike."""

    def change(node: Function, place: Place) -> bool:
        held = [n for kind in (ast.Assign, ast.AnnAssign, ast.Return) for n in _at(node, place, kind)]
        held = [n for n in held if getattr(n, "value", None) is not None]
        if not held:
            return False
        one = held[-1]
        keep = ast.Assign([ast.Name("kept", ast.Store())], one.value, lineno=one.lineno)  # type: ignore[attr-defined]
        one.value = ast.Name("kept", ast.Load())  # type: ignore[attr-defined]
        return _swap(node, one, [keep, one])

    return _edited(place, change)


def arguments_into_variables(place: Place) -> Texts | None:
    """Every keyword of the calls on the line is computed one line above."""

    def change(node: Function, place: Place) -> bool:
        simple = (ast.Assign, ast.Expr, ast.Return, ast.AugAssign)
        held = [n for kind in simple for n in _at(node, place, kind)]
        if not held or _jitted(node):
            return False
        one = held[-1]
        outer = one.value if isinstance(one, (ast.Assign, ast.Expr, ast.Return)) else None
        if not isinstance(outer, ast.Call) or not outer.keywords:
            return False
        kept: list[ast.stmt] = []
        for at, keyword in enumerate(k for k in outer.keywords if k.arg):
            name = f"kept_{at}"
            kept.append(ast.Assign([ast.Name(name, ast.Store())], keyword.value, lineno=one.lineno))
            keyword.value = ast.Name(name, ast.Load())
        return _swap(node, one, [*kept, one])

    return _edited(place, change)


def keywords_into_dict(place: Place) -> Texts | None:
    """`f(a, b=c)` becomes `f(a, **dict(b=c))`."""

    def change(node: Function, place: Place) -> bool:
        simple = (ast.Assign, ast.Expr, ast.Return)
        held = [n for kind in simple for n in _at(node, place, kind)]
        outer = held[-1].value if held else None  # type: ignore[attr-defined]
        if not isinstance(outer, ast.Call) or not outer.keywords or _jitted(node):
            return False
        packed = ast.Call(ast.Name("dict", ast.Load()), [], outer.keywords)
        outer.keywords = [ast.keyword(None, packed)]
        return True

    return _edited(place, change)


def _around(make: Callable[[ast.stmt], ast.stmt]) -> Callable[[Place], Texts | None]:
    def edit(place: Place) -> Texts | None:
        def change(node: Function, place: Place) -> bool:
            if _jitted(node):
                return False
            simple = (ast.If, ast.Assign, ast.Return, ast.Expr, ast.AugAssign)
            held = [n for kind in simple for n in _at(node, place, kind)]
            if not held:
                return False
            one = max(held, key=lambda n: n.lineno)
            return _swap(node, one, [make(one)])

        return _edited(place, change)

    return edit


in_try = _around(lambda one: ast.Try([one], [], [], [ast.Pass()]))
in_with = _around(
    lambda one: ast.With([ast.withitem(ast.parse("contextlib.nullcontext()", mode="eval").body)], [one])
)
in_if_true = _around(lambda one: ast.If(ast.Constant(True), [one], []))
in_match_true = _around(
    lambda one: ast.Match(ast.Constant(True), [ast.match_case(ast.MatchAs(), None, [one])])
)


def locals_renamed(place: Place) -> Texts | None:
    """The local names on the line are spelled otherwise in their function."""

    def change(node: Function, place: Place) -> bool:
        names = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
        given = {a.arg for a in ast.walk(node) if isinstance(a, ast.arg)}
        outer = {
            name for n in ast.walk(node) if isinstance(n, (ast.Global, ast.Nonlocal)) for name in n.names
        }
        bound = {n.id for n in names if isinstance(n.ctx, ast.Store)} - given - outer
        statement = place.chain[-1]
        here = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name)} & bound
        for name in names:
            if name.id in here:
                name.id = f"{name.id}_under_another_name"
        return bool(here)

    return _edited(place, change)


def function_to_end(place: Place) -> Texts | None:
    """The function or class at module level moves to the end of its file."""
    if not place.chain or not isinstance(place.chain[0], (ast.FunctionDef, ast.ClassDef)):
        return None
    top, lines = place.chain[0], place.text.rstrip("\n").split("\n")
    block = lines[_first(top) - 1 : top.end_lineno]
    rest = [*lines[: _first(top) - 1], *lines[(top.end_lineno or 0) :]]
    return {place.rel: "\n".join([*rest, "", "", *block, ""])}


def moved_to_another_file(place: Place) -> Texts | None:
    """The function, class or constant at module level moves to a new file and is imported back."""
    if not place.chain:
        return None
    top, lines = place.chain[0], place.text.split("\n")
    if isinstance(top, (ast.FunctionDef, ast.ClassDef)):
        name = top.name
    elif isinstance(top, (ast.Assign, ast.AnnAssign)):
        target = top.targets[0] if isinstance(top, ast.Assign) else top.target
        if not isinstance(target, ast.Name):
            return None
        name = target.id
    else:
        return None
    folder, _, stem = place.rel.rpartition("/")
    new = f"{folder}/moved_from_{stem}"
    module = new.removesuffix(".py").replace("/", ".")
    head = [line for line in lines if re.match(r"(from|import) [\w.]+( import \w+)?$", line)]
    block = lines[_first(top) - 1 : top.end_lineno]
    back = f"from {module} import {name}"
    return {
        place.rel: "\n".join([*lines[: _first(top) - 1], back, *lines[(top.end_lineno or 0) :]]),
        new: "\n".join([*head, "", *block, ""]),
    }


EDITS: dict[str, Callable[[Place], Texts | None]] = {
    edit.__name__: edit
    for edit in (
        reprint,
        reformat_79,
        reformat_120,
        body_into_helper,
        body_into_closure,
        outer_if_to_match,
        inner_if_to_match,
        every_if_to_match,
        negate_if,
        test_into_variable,
        test_into_walrus,
        test_into_lambda,
        value_into_variable,
        arguments_into_variables,
        keywords_into_dict,
        locals_renamed,
        function_to_end,
        moved_to_another_file,
    )
}
EDITS |= {"in_try": in_try, "in_with": in_with, "in_if_true": in_if_true, "in_match_true": in_match_true}

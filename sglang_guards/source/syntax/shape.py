"""Where a construct stands in a function, and whether a function has a shape in which an absence says something."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable

from sglang_guards.source.syntax.nodes import walk
from sglang_guards.source.syntax.slicing import Unknown

_OPAQUE = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Match,
    ast.Lambda,
    ast.AsyncWith,
    ast.AsyncFor,
)
#: A test on the way to a statement, and whether it must hold for the statement to be reached.
Guard = tuple[ast.expr, bool]


def names_in(node: ast.AST) -> set[str]:
    """Every name and attribute below a node."""
    found = {item.id for item in walk(node) if isinstance(item, ast.Name)}
    return found | {item.attr for item in walk(node) if isinstance(item, ast.Attribute)}


def guards(root: ast.AST, target: ast.AST) -> list[Guard]:
    """The tests of the `if` statements around a node, outermost first; Unknown where something else is around it."""
    way = _way(root, target)
    if way is None:
        raise Unknown("the construct is elsewhere")
    found: list[Guard] = []
    for parent, child in itertools.pairwise(way):
        if parent is not root and isinstance(parent, _OPAQUE):
            raise Unknown(f"line {getattr(parent, 'lineno', 0)}: what decides here cannot be followed")
        if isinstance(parent, ast.If) and child is not parent.test:
            found.append((parent.test, any(child is item for item in parent.body)))
    return found


def _way(node: ast.AST, target: ast.AST) -> list[ast.AST] | None:
    if node is target:
        return [node]
    for child in ast.iter_child_nodes(node):
        if _may_hold(child, target) and (way := _way(child, target)) is not None:
            return [node, *way]
    return None


def _may_hold(node: ast.AST, target: ast.AST) -> bool:
    """Whether the lines of a node take in the other's. Decorators stand above the line that a definition has."""
    first, last, line = (
        getattr(node, "lineno", None), getattr(node, "end_lineno", None), getattr(target, "lineno", None)
    )  # fmt: skip
    if first is None or last is None or line is None or hasattr(node, "decorator_list"):
        return True
    return bool(first <= line <= last)


def resolved_names(root: ast.AST, test: ast.AST) -> set[str]:
    """Names of an expression and of what its local names were given."""
    names = names_in(test)
    while True:
        given = {
            name
            for node in walk(root)
            if isinstance(node, (ast.Assign, ast.NamedExpr)) and node.value is not None
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name) and target.id in names
            for name in names_in(node.value)
        }
        if given <= names:
            return names
        names |= given


def upright(root: ast.AST, word: str) -> None:
    """Unknown where a name is asked the other way round: under a `not`."""
    for node in walk(root):
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not) and word in names_in(node.operand):
            raise Unknown(f"line {node.lineno}: {word} is asked the other way round")


def plain(node: ast.stmt) -> None:
    """Unknown where the function hands its work on, so that what it lacks may be elsewhere."""
    body = list(getattr(node, "body", []))
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    calls = [n for n in body if isinstance(n, (ast.Return, ast.Expr)) and isinstance(n.value, ast.Call)]
    if len(body) == 1 and calls:
        raise Unknown("the function hands its work on")
    opaque = tuple(kind for kind in _OPAQUE if kind is not ast.Lambda)
    if any(isinstance(item, opaque) for part in body for item in walk(part)):
        raise Unknown("the function has parts that cannot be followed")


def keywords(calls: Iterable[ast.Call], name: str) -> bool | None:
    """Whether a keyword is given to any of the calls; None where arguments are packed or there is no call."""
    made = list(calls)
    if any(k.arg == name for call in made for k in call.keywords):
        return True
    packed = any(k.arg is None for call in made for k in call.keywords)
    return None if packed or not made else False

"""Walking syntax trees. A launch waits for it, tens of thousands of times: hence not the generators of `ast`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import TypeVar

_Node = TypeVar("_Node", bound=ast.AST)
#: Fields that never hold a node that anybody asks for: names and marks.
_LEAVES = frozenset({"ctx", "id", "attr", "kind", "type_comment", "lineno"})
#: By class: the fields that may hold nodes.
_fields: dict[type[ast.AST], tuple[str, ...]] = {ast.Constant: ()}


def children(node: ast.AST) -> list[ast.AST]:
    """The nodes directly below, in order; the `ctx` of names is left out."""
    kind = node.__class__
    names = _fields.get(kind)
    if names is None:
        names = _fields[kind] = tuple(name for name in kind._fields if name not in _LEAVES)
    found: list[ast.AST] = []
    values = node.__dict__
    for name in names:
        value = values.get(name)
        if not value:
            continue
        if value.__class__ is list:
            found += [item for item in value if isinstance(item, ast.AST)]
        elif isinstance(value, ast.AST):
            found.append(value)
    return found


def walk(node: ast.AST) -> list[ast.AST]:
    """A node and everything below it, in the order of `ast.walk`."""
    found = [node]
    known = _fields
    for here in found:  # grows while it is gone through
        if known.get(here.__class__) != ():
            found += children(here)
    return found


def copied(node: _Node) -> _Node:
    """A copy of a whole tree; `copy.deepcopy` takes four times as long."""
    made = node.__class__()
    into = made.__dict__
    for name, value in node.__dict__.items():
        if value.__class__ is list:
            into[name] = [copied(item) if isinstance(item, ast.AST) else item for item in value]
        else:
            into[name] = copied(value) if isinstance(value, ast.AST) else value
    return made


def own_parts(node: ast.stmt) -> Iterator[ast.expr]:
    """Expressions that the statement itself evaluates, without those of nested statements."""
    for child in children(node):
        if isinstance(child, ast.expr):
            yield child
        elif isinstance(child, ast.withitem):
            yield child.context_expr


def statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """All statements, nested ones too, without looking into expressions."""
    for node in body:
        yield node
        for block in ("body", "orelse", "finalbody"):
            yield from statements(getattr(node, block, ()))
        for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            yield from statements(part.body)

"""Walking syntax trees. A launch waits for it, tens of thousands of times: hence not the generators of `ast`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence


def children(node: ast.AST) -> list[ast.AST]:
    """The nodes directly below, in order; the `ctx` of names is left out."""
    found: list[ast.AST] = []
    for name in node._fields:
        value = None if name == "ctx" else getattr(node, name, None)
        if value.__class__ is list:
            found += [item for item in value if isinstance(item, ast.AST)]
        elif isinstance(value, ast.AST):
            found.append(value)
    return found


def walk(node: ast.AST) -> list[ast.AST]:
    """A node and everything below it, in the order of `ast.walk`."""
    found = [node]
    for here in found:  # grows while it is gone through
        found += children(here)
    return found


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

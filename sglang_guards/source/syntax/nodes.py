"""Walking syntax trees. A launch waits for it, tens of thousands of times: hence not the generators of `ast`."""

from __future__ import annotations

import ast


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

"""The edit that swaps both sides of a condition: what a probe read from an `if` must not survive it."""

from __future__ import annotations

import ast

from sglang_guards.source.tree import Source
from tests.mutation.overlay import Edited, fresh, value
from tests.mutation.suite import Suite


def negated(source: Source, where: str) -> Source | None:
    """The tree with the test of the `if` at this place turned round; None where no `if` begins there."""
    rel, _, line = where.rpartition(":")
    text = source.text(rel) if line.isdigit() else None
    if text is None or not text.split("\n")[int(line) - 1].lstrip().startswith(("if ", "elif ")):
        return None
    node = next(
        (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.If) and n.lineno == int(line)), None
    )
    if node is None:
        return None
    test = ast.get_source_segment(text, node.test)
    lines = text.encode().split(b"\n")
    first, last = node.test.lineno - 1, (node.test.end_lineno or 0) - 1
    before, after = lines[first][: node.test.col_offset], lines[last][node.test.end_col_offset :]
    changed = b"\n".join([*lines[:first], before + f"not ({test})".encode() + after, *lines[last + 1 :]])
    return Edited(source, {rel: changed.decode()})


def survivors(suite: Suite) -> tuple[list[str], list[str]]:
    """Probes that cite the line of an `if`, and those of them whose answer stays when it is turned round."""
    asked, stayed = [], []
    for name, where in suite.where.items():
        edited = negated(suite.base, where) if where else None
        if edited is None or suite.answers[name] is None:
            continue
        asked.append(name)
        if value(fresh(edited, name, suite.arguments[name])) == suite.answers[name]:
            stayed.append(name)
    return asked, stayed

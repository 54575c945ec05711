"""Cut one statement out of a file by its indentation, and parse only that, with the file's line numbers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator


class Unknown(Exception):
    """Raised inside a probe that cannot tell; its text becomes `Answer.detail`."""


def depth_at(text: str, offset: int) -> int:
    line = text[text.rfind("\n", 0, offset) + 1 :].split("\n", 1)[0]
    return len(line) - len(line.lstrip(" "))


def block_ends(text: str, start: int, depth: int) -> Iterator[int]:
    """Places where a block that begins at `start` may end: lines that are not deeper, then the end of the text."""
    bound = re.compile(rf"^ {{0,{depth}}}(?=[^\s)\]}}#])", re.MULTILINE)
    for found in bound.finditer(text, text.find("\n", start) + 1 or len(text)):
        yield found.start()
    yield len(text)


def parse_at(text: str, start: int, depth: int) -> ast.stmt:
    """Parse the one statement at `start`. A string that reaches the margin fools the indentation: try further."""
    trouble: SyntaxError | None = None
    for tries, stop in enumerate(block_ends(text, start, depth)):
        if tries == 8:
            break
        try:
            wrapper = ast.parse("if 1:\n" + text[start:stop] if depth else text[start:stop])
        except SyntaxError as why:
            trouble = trouble or why
            continue
        first = wrapper.body[0]
        node = first.body[0] if depth and isinstance(first, ast.If) else first
        ast.increment_lineno(node, text.count("\n", 0, start) - (1 if depth else 0))
        return node
    raise trouble or SyntaxError("nothing to parse")


def without_strings(text: str) -> str:
    """The text with triple-quoted strings emptied, so that prose does not read as code."""
    return re.sub(r'("""|\'\'\')(?:.|\n)*?\1', '""', text)

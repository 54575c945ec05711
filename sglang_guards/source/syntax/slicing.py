"""Cut one statement out of a file by its indentation, and parse only that, with the file's line numbers."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Sequence


class Unknown(Exception):
    """Raised inside a probe that cannot tell; its text becomes `Answer.detail`."""


#: How a line of code begins, as against prose in a string that reaches the margin.
_CODE = (
    r"(?:@|(?:async|def|class|if|elif|else|for|while|try|except|finally|with|match|import|from|return|raise|assert"
    r"|del|global|nonlocal|pass|break|continue)\b|[\w*\[][\w.\[\]'\", *]*(?:[-+*/|&%@]?=|:|\())"
)
_IS_CODE = re.compile(rf" *{_CODE}")


def enclosing(text: str, offset: int) -> str | None:
    """Qualified name of the innermost function around a place in the text, None at module level."""
    line = text[text.rfind("\n", 0, offset) + 1 :].split("\n", 1)[0]
    limit, names, in_function = len(line) - len(line.lstrip(" ")), [], False
    for line in reversed(text[:offset].splitlines()):
        depth = len(line) - len(line.lstrip(" "))
        if depth >= limit or not _IS_CODE.match(line):
            continue
        limit = depth
        if head := re.match(r" *(async def|def|class) (\w+)", line):
            in_function = in_function or head[1] != "class"
            names.append(head[2])
        if depth == 0:
            break
    return ".".join(reversed(names)) if in_function else None


def block_ends(text: str, start: int, depth: int) -> Iterator[int]:
    """Where a block that begins at `start` may end: at lines that are not deeper, then at the end."""
    bound = re.compile(rf"^ {{0,{depth}}}(?={_CODE})", re.MULTILINE)
    for found in bound.finditer(text, text.find("\n", start) + 1 or len(text)):
        yield found.start()
    yield len(text)


def parse_at(text: str, start: int, depth: int) -> ast.stmt:
    """Parse the one statement at `start`; a string that reaches the margin makes it look shorter: try on."""
    trouble: SyntaxError | None = None
    above = text.count("\n", 0, start)  # blank lines in front keep the line numbers of the file
    head = "\n" * (above - 1) + "if 1:\n" if depth else "\n" * above
    for tries, stop in enumerate(block_ends(text, start, depth)):
        if tries == 8:
            break
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # SGLang's escape sequences are no news to its operator
                first = ast.parse(head + text[start:stop]).body[0]
        except SyntaxError as why:
            trouble = trouble or why
            continue
        return first.body[0] if depth and isinstance(first, ast.If) else first
    raise trouble or SyntaxError("nothing to parse")


def within(body: Sequence[ast.stmt], lines: Sequence[int]) -> list[ast.stmt]:
    """The innermost statements of a body on which the lines lie; a block's own head counts as the block."""
    found: list[ast.stmt] = []
    for node in body:
        mine = [line for line in lines if node.lineno <= line <= (node.end_lineno or node.lineno)]
        if not mine:
            continue
        blocks = [getattr(node, name, ()) for name in ("body", "orelse", "finalbody")]
        blocks += [handler.body for handler in getattr(node, "handlers", ())]
        inner = [statement for block in blocks for statement in block]
        covered = {line for s in inner for line in range(s.lineno, (s.end_lineno or s.lineno) + 1)}
        if not covered.issuperset(mine):
            found.append(node)
        found += within(inner, [line for line in mine if line in covered])
    return found


_FIELD = re.compile(r"^    ([a-z]\w*)\s*:(?!=)\s*(?!ClassVar)\S", re.MULTILINE)
_METHOD = re.compile(r"^    (?:@|def |async def )", re.MULTILINE)


def field_names(text: str, class_pattern: str) -> set[str]:
    """Annotated fields of the classes at module level whose name matches, without private ones."""
    names: set[str] = set()
    for head in re.finditer(rf"^class {class_pattern}\b", text, re.MULTILINE):
        body = text[head.start() : next(block_ends(text, head.start(), 0))]
        for part in _METHOD.split(body):  # a method's own lines are deeper; its strings need not be looked at
            names.update(_FIELD.findall(re.sub(r'("""|\'\'\')(?:.|\n)*?\1', "", part)))
    return names

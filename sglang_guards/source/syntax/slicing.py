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
    # The line break in front is a literal that `re` looks for fast; «^» would be tried at every character.
    bound = re.compile(rf"\n {{0,{depth}}}(?={_CODE})")
    line_end = text.find("\n", start)
    for found in bound.finditer(text, len(text) if line_end < 0 else line_end):
        yield found.start() + 1
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
    if not lines:
        return found
    for node in body:
        mine = [line for line in lines if node.lineno <= line <= (node.end_lineno or node.lineno)]
        if not mine:
            continue
        blocks = [getattr(node, name, ()) for name in ("body", "orelse", "finalbody")]
        blocks += [handler.body for handler in getattr(node, "handlers", ())]
        inner = [statement for block in blocks for statement in block]
        spans = [(s.lineno, s.end_lineno or s.lineno) for s in inner]
        covered = [line for line in mine if any(first <= line <= last for first, last in spans)]
        if len(covered) < len(mine):
            found.append(node)
        found += within(inner, covered)
    return found


_FIELD = re.compile(r"\n    ([a-z]\w*)\s*:(?!=)\s*(?!ClassVar)\S")
_LONG_STRING = re.compile(r'("""|\'\'\')[\s\S]*?\1')


def field_names(text: str, class_pattern: str) -> set[str]:
    """Annotated fields of the classes at module level whose name matches, without private ones."""
    names: set[str] = set()
    for head in re.finditer(rf"^class {class_pattern}\b", text, re.MULTILINE):
        body = text[head.start() : next(block_ends(text, head.start(), 0))]
        code = _LONG_STRING.sub("", body) if "'''" in body else "".join(body.split('"""')[::2])
        names.update(_FIELD.findall(code))  # a method's own lines are deeper
    return names

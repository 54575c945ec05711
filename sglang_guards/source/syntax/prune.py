"""Leave out of a function's body what cannot matter to a few names."""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sglang_guards.source.syntax.evaluate import SIMPLE
from sglang_guards.source.syntax.nodes import own_parts, walk


def pruned(body: Sequence[ast.stmt], seeds: set[str], *, decide_only: bool = False) -> list[ast.stmt]:
    """The body without what cannot matter to `seeds`.

    Keeps statements that name a seed, returns, and whatever assigns a name that these depend on: a function of
    400 lines comes down to some thirty statements.

    With `decide_only` statements that use a seed without assigning it are left out as well.
    """
    pruner = _Pruner(set() if decide_only else seeds, set(seeds))
    while True:
        before = len(pruner.wanted)
        kept = pruner.prune(body)
        if len(pruner.wanted) == before:
            return kept


@dataclass
class _Pruner:
    uses: set[str]
    wanted: set[str]
    names: dict[int, tuple[set[str], set[str]]] = field(default_factory=dict)

    def of(self, node: ast.stmt) -> tuple[set[str], set[str]]:
        """Names that the statement itself uses, names that it assigns."""
        if id(node) not in self.names:
            used: set[str] = set()
            assigned: set[str] = set()
            for part in own_parts(node):
                for item in walk(part):
                    if isinstance(item, ast.Name):
                        (used if isinstance(item.ctx, ast.Load) else assigned).add(item.id)
                    elif isinstance(item, ast.Attribute):
                        used.add(item.attr)
            if isinstance(node, ast.AugAssign):
                used |= assigned
            self.names[id(node)] = used, assigned
        return self.names[id(node)]

    def prune(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        kept: list[ast.stmt] = []
        for node in body:
            if isinstance(node, (ast.If, ast.For, ast.While, ast.With, ast.Try)):
                blocks = {name: self.prune(getattr(node, name, [])) for name in _BLOCKS}
                used, assigned = self.of(node)
                if any(blocks.values()) or assigned & self.wanted or self._in_handlers(node):
                    self.wanted |= used
                    kept.append(_with_blocks(node, blocks))
            elif isinstance(node, ast.Return):
                kept.append(node)
            elif isinstance(node, SIMPLE):
                used, assigned = self.of(node)
                if assigned & self.wanted:
                    self.wanted |= used
                    kept.append(node)
                elif used & self.uses or assigned & self.uses:
                    kept.append(node)
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not self._matters(node):
                kept += [_unknown_value(node, name) for name in sorted(_rebound(node) & self.wanted)]
            elif self._opaque(node):
                kept.append(node)
        return kept

    def _matters(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
        """Whether a nested function uses a seed, or is called for a value that is wanted."""
        return node.name in self.wanted or bool(_mentioned(node) & self.uses)

    def _in_handlers(self, node: ast.stmt) -> bool:
        """Whether what happens after an exception matters; such a `try` cannot be followed."""
        return any(self._opaque(part) for handler in getattr(node, "handlers", ()) for part in handler.body)

    def _opaque(self, node: ast.stmt) -> bool:
        """Whether a statement of a kind that is not followed could matter: then it is kept, and is Unknown."""
        if isinstance(node, ast.Raise):
            return False
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return self._matters(node)
        leaves = any(isinstance(item, ast.Return) for item in walk(node)) and not isinstance(
            node, ast.ClassDef
        )
        return leaves or bool(_mentioned(node) & (self.uses | self.wanted))


def _mentioned(node: ast.AST) -> set[str]:
    """Every name, attribute and keyword below a node."""
    found: set[str] = set()
    for item in walk(node):
        if isinstance(item, ast.Name):
            found.add(item.id)
        elif isinstance(item, ast.Attribute):
            found.add(item.attr)
        elif isinstance(item, ast.keyword) and item.arg:
            found.add(item.arg)
    return found


def _rebound(node: ast.AST) -> set[str]:
    """Names of the outer function that a nested one may bind anew."""
    return {
        name for item in walk(node) if isinstance(item, (ast.Nonlocal, ast.Global)) for name in item.names
    }


def _unknown_value(node: ast.stmt, name: str) -> ast.stmt:
    """The assignment of something unknown to a name, in the place of a statement."""
    value = ast.Call(ast.Name("<unknown>", ast.Load()), [], [])
    made = ast.Assign([ast.Name(name, ast.Store())], value)
    return ast.fix_missing_locations(ast.copy_location(made, node))


_BLOCKS = ("body", "orelse", "finalbody")


def _with_blocks(node: ast.stmt, blocks: Mapping[str, list[ast.stmt]]) -> ast.stmt:
    shell = copy.copy(node)
    for name, block in blocks.items():
        if name in node._fields:
            setattr(shell, name, block or ([ast.Pass()] if name == "body" else []))
    return shell

"""Follow a function by hand for given values of a few names, in three-valued logic.

Conditions are evaluated rather than compared with texts, so that a probe understands a condition however it is
written, and says that it cannot tell as soon as something unknown decides.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sglang_guards.probes.cut import Unknown


class _Unknown:
    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Final = _Unknown()
_MOST_PATHS = 128
_COMPARE = {
    ast.Is: operator.is_, ast.IsNot: operator.is_not, ast.Eq: operator.eq, ast.NotEq: operator.ne,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip


def truth(value: object) -> bool | None:
    return None if value is UNKNOWN else bool(value)


def terminal_name(node: ast.expr) -> str | None:
    """Last name of `a`, `a.b.c`, `a.b.c(...)`: what a fact is called wherever it is read from."""
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


@dataclass
class World:
    """What is assumed. `pinned` names keep their value whatever the code assigns; `seen` grows with assignments."""

    pinned: Mapping[str, object]
    seen: dict[str, object] = field(default_factory=dict)

    def value(self, node: ast.expr) -> object:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self.pinned.get(node.id, self.seen.get(node.id, UNKNOWN))
        if isinstance(node, ast.Attribute):
            return self.pinned.get(node.attr, UNKNOWN)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.Subscript):
            return self.pinned.get(ast.unparse(node), UNKNOWN)
        if isinstance(node, ast.BoolOp):
            return self._bool_op(node)
        if isinstance(node, ast.UnaryOp):
            return self._unary(node)
        if isinstance(node, ast.Compare):
            return self._compare(node)
        if isinstance(node, ast.IfExp):
            test = truth(self.value(node.test))
            if test is not None:
                return self.value(node.body if test else node.orelse)
            return _joined(self.value(node.body), self.value(node.orelse))
        if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            values = [self.value(item) for item in node.elts]
            return UNKNOWN if any(value is UNKNOWN for value in values) else tuple(values)
        return UNKNOWN

    def _call(self, node: ast.Call) -> object:
        name = terminal_name(node)
        if name == "getattr" and len(node.args) >= 2 and isinstance(node.args[1], ast.Constant):
            return self.pinned.get(str(node.args[1].value), UNKNOWN)
        if name == "bool" and len(node.args) == 1:
            value = self.value(node.args[0])
            return value if value is UNKNOWN else bool(value)
        if name in ("any", "all") and len(node.args) == 1 and isinstance(node.args[0], (ast.Tuple, ast.List)):
            return self._fold(node.args[0].elts, stop=name == "any")
        return self.pinned.get(name, UNKNOWN) if name else UNKNOWN

    def _fold(self, operands: Sequence[ast.expr], stop: bool) -> object:
        """Kleene's `or` (stop=True) or `and` (stop=False) over truth values."""
        unknown = False
        for operand in operands:
            known = truth(self.value(operand))
            if known is stop:
                return stop
            unknown = unknown or known is None
        return UNKNOWN if unknown else not stop

    def _bool_op(self, node: ast.BoolOp) -> object:
        return self._fold(node.values, stop=isinstance(node.op, ast.Or))

    def _unary(self, node: ast.UnaryOp) -> object:
        value = self.value(node.operand)
        if value is UNKNOWN:
            return UNKNOWN
        if isinstance(node.op, ast.Not):
            return not value
        return -value if isinstance(node.op, ast.USub) and isinstance(value, (int, float)) else UNKNOWN

    def _compare(self, node: ast.Compare) -> object:
        compare = _COMPARE.get(type(node.ops[0]))
        left, right = self.value(node.left), self.value(node.comparators[0])
        if len(node.ops) != 1 or compare is None or left is UNKNOWN or right is UNKNOWN:
            return UNKNOWN
        try:
            return compare(left, right)
        except TypeError:
            return UNKNOWN

    def live(self, node: ast.AST) -> Iterator[ast.AST]:
        """Nodes of an expression that may be evaluated: branches that cannot be taken are left out."""
        yield node
        if isinstance(node, ast.IfExp):
            test = truth(self.value(node.test))
            yield from self.live(node.test)
            for taken, branch in ((test is not False, node.body), (test is not True, node.orelse)):
                if taken:
                    yield from self.live(branch)
        elif isinstance(node, ast.BoolOp):
            stop = isinstance(node.op, ast.Or)
            for operand in node.values:
                yield from self.live(operand)
                if truth(self.value(operand)) is stop:
                    break
        elif not isinstance(node, ast.Lambda):
            for child in ast.iter_child_nodes(node):
                yield from self.live(child)


def _joined(one: object, other: object) -> object:
    return one if one is not UNKNOWN and other is not UNKNOWN and one == other else UNKNOWN


@dataclass(frozen=True)
class Step:
    """A statement that is reached, and the nodes of its own expressions that may be evaluated."""

    node: ast.stmt
    live: tuple[ast.AST, ...]


@dataclass(frozen=True)
class Path:
    """One way through a body. `end` is the return or raise that ends it, None where it runs off the end."""

    steps: tuple[Step, ...]
    end: ast.stmt | None
    seen: Mapping[str, object]


def paths(body: Sequence[ast.stmt], world: World) -> list[Path]:
    """Every way through the body: an unknown condition goes both ways. Loops are gone through once."""
    found: list[Path] = []
    _walk(list(body), World(world.pinned, dict(world.seen)), [], found)
    return found


def _walk(rest: list[ast.stmt], world: World, steps: list[Step], found: list[Path]) -> None:
    while rest:
        node, rest = rest[0], rest[1:]
        live = tuple(item for part in _own_parts(node) for item in world.live(part))
        steps.append(Step(node, live))
        if isinstance(node, (ast.Return, ast.Raise)):
            found.append(Path(tuple(steps), node, world.seen))
            return
        if isinstance(node, ast.If):
            test = truth(world.value(node.test))
            if test is None:
                if len(found) >= _MOST_PATHS:
                    raise Unknown("too many conditions are unknown")
                _walk([*node.orelse, *rest], _assuming(world, node.test, False), list(steps), found)
                world, test = _assuming(world, node.test, True), True
            rest = [*(node.body if test else node.orelse), *rest]
        elif isinstance(node, (ast.For, ast.While, ast.With, ast.Try)):
            if isinstance(node, ast.For):
                _assign(node.target, UNKNOWN, world)
            rest = [*node.body, *rest]
        else:
            _simple(node, world)
    found.append(Path(tuple(steps), None, world.seen))


def _assuming(world: World, test: ast.expr, value: bool) -> World:
    """A copy for one side of an unknown test; a bare name keeps that value from here on."""
    copy = World(world.pinned, dict(world.seen))
    if isinstance(test, ast.Name):
        copy.seen[test.id] = value
    return copy


def _simple(node: ast.stmt, world: World) -> None:
    if isinstance(node, ast.Assign):
        value = world.value(node.value)
        for target in node.targets:
            _assign(target, value, world)
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        _assign(node.target, world.value(node.value), world)
    elif isinstance(node, ast.AugAssign):
        value: object = UNKNOWN
        if isinstance(node.op, (ast.BitAnd, ast.BitOr)):
            op = ast.And() if isinstance(node.op, ast.BitAnd) else ast.Or()
            load = ast.Name(node.target.id, ast.Load()) if isinstance(node.target, ast.Name) else node.value
            value = world.value(ast.BoolOp(op, [load, node.value]))
        _assign(node.target, value, world)


def _assign(target: ast.expr, value: object, world: World) -> None:
    if isinstance(target, ast.Name):
        world.seen[target.id] = value
    elif isinstance(target, (ast.Tuple, ast.List)):
        for item in target.elts:
            _assign(item, UNKNOWN, world)


def _own_parts(node: ast.stmt) -> Iterator[ast.expr]:
    """Expressions that the statement itself evaluates, without those of nested statements."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield child
        elif isinstance(child, ast.withitem):
            yield child.context_expr


def pruned(body: Sequence[ast.stmt], seeds: set[str]) -> list[ast.stmt]:
    """The body without what cannot matter to `seeds`: keeps statements that name a seed, returns, and whatever
    assigns a name that these depend on. A function of 400 lines comes down to some thirty statements."""
    wanted = set(seeds)
    while True:
        before = len(wanted)
        kept = _prune(body, seeds, wanted)
        if len(wanted) == before:
            return kept


def _names(nodes: Iterator[ast.expr]) -> set[str]:
    names = {terminal_name(n) for node in nodes for n in ast.walk(node) if isinstance(n, (ast.Name, ast.Attribute))}
    return {name for name in names if name}


def _targets(node: ast.stmt) -> set[str]:
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, (ast.AnnAssign, ast.AugAssign)):
        targets = [node.target]
    return {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}


def _prune(body: Sequence[ast.stmt], seeds: set[str], wanted: set[str]) -> list[ast.stmt]:
    kept: list[ast.stmt] = []
    for node in body:
        if isinstance(node, (ast.If, ast.For, ast.While, ast.With, ast.Try)):
            inner = _prune(node.body, seeds, wanted)
            other = _prune(getattr(node, "orelse", []), seeds, wanted)
            if not inner and not other:
                continue
            names = _names(_own_parts(node))
            copy = type(node)(**{name: getattr(node, name, None) for name in node._fields})
            copy.body, copy.lineno = inner or [ast.Pass()], node.lineno
            if not isinstance(copy, ast.With):
                copy.orelse = other
            kept.append(copy)
            wanted |= names
        elif isinstance(node, ast.Return):
            kept.append(node)
        else:
            names, assigned = _names(_own_parts(node)), _targets(node)
            if names & seeds or assigned & wanted:
                kept.append(node)
            if assigned & wanted:
                wanted |= names
    return kept

"""Follow a function by hand for given values of a few names, in three-valued logic.

Conditions are evaluated rather than compared with texts, so that a probe understands a condition however
it is written, and says that it cannot tell as soon as something unknown decides.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sglang_guards.source.syntax.nodes import children, own_parts, walk
from sglang_guards.source.syntax.slicing import Unknown


class _Unknown:
    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Final = _Unknown()
_MOST_PATHS = 128
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], object]] = {
    ast.Is: operator.is_, ast.IsNot: operator.is_not, ast.Eq: operator.eq, ast.NotEq: operator.ne,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip


@dataclass(frozen=True)
class Choice:
    """A member of an enum with `is_x()` methods, as SGLang's backends are."""

    name: str


class Enum:
    """An enum class such as MoeRunnerBackend: its members are Choices, `TRITON` is Choice("triton")."""


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
    """What is assumed: `pinned` names keep their value whatever is assigned, `seen` grows with assignments."""

    pinned: Mapping[str, object]
    seen: dict[str, object] = field(default_factory=dict)

    def value(self, node: ast.expr) -> object:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self.pinned.get(node.id, self.seen.get(node.id, UNKNOWN))
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and isinstance(self.pinned.get(node.value.id), Enum):
                return Choice(node.attr.lower())
            return self.pinned.get(node.attr, UNKNOWN)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.Subscript):
            return self.pinned.get(ast.unparse(node), UNKNOWN)
        if isinstance(node, ast.NamedExpr):
            return self.value(node.value)
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
        if name and isinstance(node.func, ast.Attribute) and name.startswith(("is_", "startswith")):
            owner = self.value(node.func.value)
            if isinstance(owner, Choice):
                return owner.name == name[3:]
            if isinstance(owner, str) and len(node.args) == 1 and isinstance(node.args[0], ast.Constant):
                return owner.startswith(str(node.args[0].value))
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
        values = [self.value(part) for part in (node.left, *node.comparators)]
        unknown = False
        for op, left, right, part in zip(node.ops, values, values[1:], node.comparators, strict=False):
            compare = _COMPARE[type(op)]
            if (
                right is UNKNOWN
                and isinstance(op, ast.In)
                and isinstance(part, (ast.Tuple, ast.List, ast.Set))
            ):
                # one known item is enough, whatever the others are (`x in [a, *more]`)
                items = [self.value(item) for item in part.elts]
                right = tuple(items) if left is not UNKNOWN and left in items else UNKNOWN
            if left is UNKNOWN or right is UNKNOWN:
                unknown = True
                continue
            try:
                if not compare(left, right):
                    return False
            except TypeError:
                unknown = True
        return UNKNOWN if unknown else True

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
            for child in children(node):
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


def paths(body: Sequence[ast.stmt], world: World, watch: bool = True) -> list[Path]:
    """Every way through the body: an unknown condition goes both ways. Loops are gone through once.

    Without `watch` no steps are kept, only how each way ends and what names hold then.
    """
    found: list[Path] = []
    _walk(list(body), World(world.pinned, dict(world.seen)), [] if watch else None, found)
    return found


def _walk(rest: list[ast.stmt], world: World, steps: list[Step] | None, found: list[Path]) -> None:
    while rest:
        node, rest = rest[0], rest[1:]
        if steps is not None:
            live = tuple(item for part in own_parts(node) for item in world.live(part))
            steps.append(Step(node, live))
        if isinstance(node, (ast.Return, ast.Raise)):
            found.append(Path(tuple(steps or ()), node, world.seen))
            return
        if isinstance(node, ast.If):
            value = world.value(node.test)
            test = truth(value)
            _bind_walrus(node, world, node.test, value)
            if test is None:
                if len(found) >= _MOST_PATHS:
                    raise Unknown("too many conditions are unknown")
                side = None if steps is None else list(steps)
                _walk([*node.orelse, *rest], _assuming(world, node.test, False), side, found)
                world, test = _assuming(world, node.test, True), True
            rest = [*(node.body if test else node.orelse), *rest]
        elif isinstance(node, (ast.For, ast.While, ast.With, ast.Try)):
            rest = [*_block(node, world), *rest]
        elif isinstance(node, SIMPLE):
            _simple(node, world)
        else:
            raise Unknown(f"line {node.lineno}: a {type(node).__name__} statement cannot be followed")
    found.append(Path(tuple(steps or ()), None, world.seen))


#: Statements without nested ones that the evaluator understands; whatever is in no list is Unknown.
SIMPLE = (
    ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Pass, ast.Assert, ast.Delete, ast.Import,
    ast.ImportFrom, ast.Global, ast.Nonlocal, ast.Break, ast.Continue,
)  # fmt: skip


def _block(node: ast.For | ast.While | ast.With | ast.Try, world: World) -> list[ast.stmt]:
    """Statements of a loop, gone through once, of a `with`, and of a `try` in which nothing is raised."""
    _bind_walrus(node, world)
    if isinstance(node, ast.For):
        _assign(node.target, UNKNOWN, world)
    if isinstance(node, ast.With):
        for managed in node.items:
            if managed.optional_vars is not None:
                _assign(managed.optional_vars, UNKNOWN, world)
    if not isinstance(node, ast.Try):
        return node.body
    for handler in node.handlers:
        for inside in (inner for part in handler.body for inner in walk(part)):
            decides = isinstance(inside, ast.Return) or (
                isinstance(inside, ast.Name) and isinstance(inside.ctx, ast.Store)
            )
            if decides:
                raise Unknown(f"line {node.lineno}: what follows an exception cannot be followed")
    return [*node.body, *node.orelse, *node.finalbody]


def _bind_walrus(
    node: ast.stmt, world: World, whole: ast.expr | None = None, value: object = UNKNOWN
) -> None:
    """Names that `:=` binds in a statement's own expressions; the value is known where it is the whole of one."""
    for part in own_parts(node):
        for item in walk(part):
            if isinstance(item, ast.NamedExpr):
                _assign(item.target, value if item is whole else UNKNOWN, world)


def _assuming(world: World, test: ast.expr, value: bool) -> World:
    """A copy for one side of an unknown test; a bare name keeps that value from here on."""
    side = World(world.pinned, dict(world.seen))
    bare = test.target if isinstance(test, ast.NamedExpr) else test
    if isinstance(bare, ast.Name):
        side.seen[bare.id] = value
    return side


def _simple(node: ast.stmt, world: World) -> None:
    if isinstance(node, ast.Assign):
        given = world.value(node.value)
        _bind_walrus(node, world, node.value, given)
        for target in node.targets:
            _assign(target, given, world)
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        _assign(node.target, world.value(node.value), world)
    elif isinstance(node, ast.AugAssign):
        value: object = UNKNOWN
        if isinstance(node.op, (ast.BitAnd, ast.BitOr)):
            op = ast.And() if isinstance(node.op, ast.BitAnd) else ast.Or()
            load = ast.Name(node.target.id, ast.Load()) if isinstance(node.target, ast.Name) else node.value
            value = world.value(ast.BoolOp(op, [load, node.value]))
        _assign(node.target, value, world)
    else:
        _bind_walrus(node, world)


def _assign(target: ast.expr, value: object, world: World) -> None:
    if isinstance(target, ast.Name):
        world.seen[target.id] = value
    elif isinstance(target, (ast.Tuple, ast.List)):
        for item in target.elts:
            _assign(item, UNKNOWN, world)
    elif isinstance(target, ast.Starred):
        _assign(target.value, UNKNOWN, world)

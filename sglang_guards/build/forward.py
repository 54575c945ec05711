"""Whether the first forward of a built layer must use a runner that the layer does not have.

Some methods (W4AFP8, FlashInfer's own kernels) call their kernel themselves and rightly have no runner, others have
branches with and without one. So the layer's own core (`run_moe_core`, which DeepEP's layer overrides to call other
methods than `apply`) and what it calls are walked as text with the built objects at hand: a test that reads only the
method, the layer and module globals is asked, any other may go either way. Only where every way ends at
``self.runner`` is the missing runner a fault.
"""

from __future__ import annotations

import ast
import builtins
import enum
import functools
import inspect
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any

from sglang_guards.build import stand_ins

_DEPTH = 6
_UNKNOWN = object()


class _End(enum.Enum):
    """How one way through a block ends."""

    READS = "reads the runner"
    RAISES = "raises"
    LEAVES = "returns without it"
    FALLS = "goes on"


@dataclass(frozen=True)
class _Scope:
    function: FunctionType
    values: Mapping[str, Any]
    depth: int
    unknown: frozenset[str]


def needs_runner(method: Any, layer: Any) -> str | None:
    """``file:line`` at which every way of the layer uses ``self.runner``; None where one does not, or may not."""
    places: list[str] = []
    if not _always_reads(_ends(method, layer, places)):
        return None
    core = getattr(layer, "run_moe_core", None)
    if core is not None and method is getattr(layer, "quant_method", None):
        places = []
        if not _always_reads(_walked(core, {}, places)):
            return None
    return places[0] if places else None


def _always_reads(ends: set[_End]) -> bool:
    return ends <= {_End.READS, _End.RAISES} and _End.READS in ends


def may_pass_by_runner(method: Any, layer: Any) -> bool:
    """Whether one way through `apply` uses ``self.runner`` and another may return without it."""
    return {_End.READS, _End.LEAVES} <= _ends(method, layer, [])


def _ends(method: Any, layer: Any, places: list[str]) -> set[_End]:
    entry = getattr(method, "apply_weights", None) or getattr(method, "apply", None)
    return _walked(entry, {"layer": layer}, places)


def _walked(entry: Any, known: Mapping[str, Any], places: list[str]) -> set[_End]:
    try:
        return _call(entry, known, _DEPTH, places)
    except RecursionError:
        return set()


def _call(function: Any, known: Mapping[str, Any], depth: int, places: list[str]) -> set[_End]:
    """All ways through a bound method of SGLang; what cannot be read leaves without the runner."""
    if not (isinstance(function, MethodType) and isinstance(function.__func__, FunctionType)) or depth <= 0:
        return {_End.LEAVES}
    plain = inspect.unwrap(function.__func__)
    tree = _tree(plain)
    if tree is None:
        return {_End.LEAVES}
    names = [argument.arg for argument in (*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs)]
    values = {name: value for name, value in known.items() if name in names}
    if names:
        values[names[0]] = function.__self__
    assigned = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    extra = {argument.arg for argument in (tree.args.vararg, tree.args.kwarg) if argument is not None}
    unknown = frozenset((set(names) | assigned | extra) - set(values))
    return _block(tree.body, _Scope(plain, values, depth, unknown), places)


@functools.cache
def _tree(function: FunctionType) -> ast.FunctionDef | None:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return None
    return tree if isinstance(tree, ast.FunctionDef) else None


def _block(body: Sequence[ast.stmt], scope: _Scope, places: list[str]) -> set[_End]:
    ends: set[_End] = set()
    for statement in body:
        here = _statement(statement, scope, places)
        ends |= here - {_End.FALLS}
        if _End.FALLS not in here:
            return ends
    return ends | {_End.FALLS}


def _statement(node: ast.stmt, scope: _Scope, places: list[str]) -> set[_End]:
    if isinstance(node, ast.If):
        value = _truth(node.test, scope)
        ends: set[_End] = set()
        if value is not False:
            ends |= _block(node.body, scope, places)
        if value is not True:
            ends |= _block(node.orelse, scope, places)
        return ends
    if isinstance(node, ast.With):
        return _block(node.body, scope, places)
    if isinstance(node, ast.Assert):
        return {_End.RAISES} if _truth(node.test, scope) is False else {_End.FALLS}
    if isinstance(node, ast.Raise):
        return {_End.RAISES}
    if isinstance(node, (ast.For, ast.While, ast.Try, ast.Match, ast.FunctionDef, ast.ClassDef)):
        return {_End.FALLS}  # what happens inside stays open, so nothing is concluded from it
    ends = _expression(node, scope, places)
    if isinstance(node, ast.Return):
        return {_End.LEAVES if end is _End.FALLS else end for end in ends}
    return ends


def _expression(node: ast.AST, scope: _Scope, places: list[str]) -> set[_End]:
    """A statement without blocks: it uses the runner itself, or calls a method of SGLang that does."""
    if any(
        isinstance(part, (ast.IfExp, ast.BoolOp, ast.Lambda)) and _mentions(part) for part in ast.walk(node)
    ):
        return {_End.FALLS, _End.READS}
    if _mentions(node):
        places.append(_place(scope, node))
        return {_End.READS}
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute):
            function = _inherited(part.func, scope) or _value(part.func, scope)
            if isinstance(function, MethodType) and function.__func__ is not scope.function:
                given = _layer_given(part, scope)
                ends = _call(function, given, scope.depth - 1, places)
                if _End.READS in ends or _End.RAISES in ends:
                    return {_End.FALLS if end is _End.LEAVES else end for end in ends}
    return {_End.FALLS}


def _inherited(function: ast.Attribute, scope: _Scope) -> Any:
    """The method that ``super().name`` means inside the walked one."""
    if not (isinstance(function.value, ast.Call) and ast.unparse(function.value) == "super()"):
        return None
    own = next(iter(scope.values.values()), None)
    line = type(own).__mro__
    here = next(
        (n for n, one in enumerate(line) if scope.function in map(_plain, vars(one).values())), len(line)
    )
    return next(
        (vars(one)[function.attr].__get__(own) for one in line[here + 1 :] if function.attr in vars(one)),
        None,
    )


def _plain(value: Any) -> Any:
    return inspect.unwrap(value) if isinstance(value, FunctionType) else None


def _layer_given(call: ast.Call, scope: _Scope) -> dict[str, Any]:
    """The layer, where the called method is handed the same one."""
    if "layer" in scope.values:
        return {"layer": scope.values["layer"]}
    handed = [part.value for part in call.keywords if part.arg == "layer"]
    given = _value(handed[0], scope) if handed else _UNKNOWN
    return {} if given is _UNKNOWN else {"layer": given}


def _mentions(node: ast.AST) -> bool:
    return any(
        isinstance(part, ast.Attribute)
        and part.attr == "runner"
        and isinstance(part.ctx, ast.Load)
        and isinstance(part.value, ast.Name)
        and part.value.id == "self"
        for part in ast.walk(node)
    )


def _place(scope: _Scope, node: ast.AST) -> str:
    code = scope.function.__code__
    file = code.co_filename.rpartition("/sglang/")[2]
    return f"sglang/{file}:{code.co_firstlineno + getattr(node, 'lineno', 1) - 1}"


def _truth(test: ast.expr, scope: _Scope) -> bool | None:
    """The truth of a test, or None where it cannot be told."""
    if isinstance(test, ast.BoolOp):
        stop = isinstance(test.op, ast.Or)
        values = []
        for part in test.values:
            values.append(_truth(part, scope))
            if values[-1] is stop:
                return stop if None not in values[:-1] else None
        return None if None in values else not stop
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        value = _truth(test.operand, scope)
        return None if value is None else not value
    value = _value(test, scope)
    if value is _UNKNOWN:
        return None
    try:
        return bool(value)
    except (Exception, stand_ins.CannotTell):
        return None


def _value(node: ast.expr, scope: _Scope) -> Any:
    names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    known = {**vars(builtins), **scope.function.__globals__, **scope.values}
    if names & scope.unknown or not names <= known.keys():
        return _UNKNOWN
    before = len(stand_ins.asked)
    try:
        code = compile(ast.Expression(node), "<test>", "eval")
        return eval(code, dict(scope.function.__globals__), dict(scope.values))
    except (Exception, stand_ins.CannotTell):
        del stand_ins.asked[before:]
        return _UNKNOWN

"""What constructing a model builds: from its entry class to the layers that it stacks.

`__init__` methods are followed by hand. Names stand for classes or, where the checkpoint's config is known, for parts
of it, so that a wrapper's `if` over its text config goes one way.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sglang_guards.source.models.class_graph import (
    STACKS,
    Classes,
    Cls,
    Fn,
    Graph,
    arguments,
    last_name,
)
from sglang_guards.source.syntax.nodes import children, walk
from sglang_guards.source.syntax.slicing import Unknown
from sglang_guards.source.tree import Code

#: Calls that choose the language model's class at run time.
_REGISTRY_CALLS = frozenset({"resolve_model_cls", "get_model_architecture", "get_model_cls"})
#: Calls that name classes without constructing them.
_TESTS = frozenset({"isinstance", "issubclass", "hasattr", "getattr", "super", "type"})
#: What a class mentions that is, or wraps, a language model.
_LANGUAGE = re.compile(r"forward_batch|language_model|thinker|ForCausalLM")
_MOST_VISITS = 200


class _Nothing:
    """A value that is not known."""


NOTHING = _Nothing()
Env = dict[str, Any]


@dataclass
class Construction:
    """Follows `__init__` from an entry class to the layers that it stacks.

    `config` is the checkpoint's config where it is known: it decides which language model a wrapper builds.
    """

    graph: Graph
    is_layer: Callable[[Cls, bool], bool]
    decoders: dict[Cls, None] = field(default_factory=dict)
    reached: dict[Cls, None] = field(default_factory=dict)
    dynamic: str = ""
    _seen: set[Any] = field(default_factory=set)

    def of(self, cls: Cls, env: Env | None = None, stacked: bool = False) -> None:
        """Collect what constructing `cls` builds; layers are collected and not looked into."""
        if self.is_layer(cls, stacked):
            self.decoders[cls] = None
            return
        if not any(_LANGUAGE.search(self.graph.text(owner)) for owner in self.graph.mro(cls)):
            return  # vision towers and projectors know no batch of requests
        self.reached[cls] = None
        found = self.graph.method(cls, "__init__")
        if found is not None:
            self._run(cls, found[0], found[1], env or {})

    def _run(self, cls: Cls | None, at: Cls | None, code: Code, env: Env) -> None:
        key = (cls, code.rel, code.node.lineno, tuple(sorted((k, repr(v)[:200]) for k, v in env.items())))
        if key in self._seen:
            return
        if len(self._seen) > _MOST_VISITS:
            raise Unknown("the model constructs too much to follow")
        self._seen.add(key)
        scope = Scope(self.graph, cls, code.rel, {**self._defaults(code, cls), **env})
        body = list(scope.taken(getattr(code.node, "body", [])))
        for node in body:
            for call, stacked in self.graph.calls_below(node):
                self._call(scope, cls, at, call, stacked)

    def _defaults(self, code: Code, cls: Cls | None) -> Env:
        node = code.node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return {}
        scope = Scope(self.graph, cls, code.rel, {})
        args = node.args
        plain = [*args.posonlyargs, *args.args]
        pairs = [*zip(plain[len(plain) - len(args.defaults) :], args.defaults, strict=True)]
        pairs += [(a, d) for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=True) if d is not None]
        env: Env = dict.fromkeys(arguments(node), NOTHING)
        env |= {a.arg: scope.classes(d) for a, d in pairs if scope.classes(d)}
        return env

    def _call(self, scope: Scope, cls: Cls | None, at: Cls | None, call: ast.Call, stacked: bool) -> None:
        func = call.func
        if last_name(func) in _TESTS:
            return
        if last_name(func) in _REGISTRY_CALLS:
            self.dynamic = f"{scope.rel}:{call.lineno}"
        if isinstance(func, ast.Attribute) and cls is not None:
            on_super = isinstance(func.value, ast.Call) and last_name(func.value.func) == "super"
            on_self = isinstance(func.value, ast.Name) and func.value.id == "self"
            found = (
                self.graph.method(cls, func.attr, at if on_super else None) if on_super or on_self else None
            )
            if found is not None:
                self._run(cls, found[0], found[1], scope.bind(call, found[1].node, skip_self=True))
            if found is not None or on_super:
                return
            base = self.graph.resolve(scope.rel, last_name(func.value)) if func.attr == "__init__" else None
            if isinstance(base, Cls) and (found := self.graph.method(base, "__init__")):
                self._run(cls, found[0], found[1], scope.bind(call, found[1].node))
                return
        function = self.graph.resolve(scope.rel, func.id) if isinstance(func, ast.Name) else None
        if isinstance(function, Fn):
            code = self.graph.function(function)
            if code is not None:
                self._run(None, None, code, scope.bind(call, code.node))
            return
        built = scope.classes(func)
        for target in sorted(built, key=lambda c: c.name):
            init = self.graph.method(target, "__init__")
            self.of(target, scope.bind(call, init[1].node, skip_self=True) if init else {}, stacked)
        if (
            not built
        ):  # partial(Layer, …), make_layers(n, Layer, …): whoever is called may construct its arguments
            for argument in (*call.args, *(k.value for k in call.keywords)):
                for target in sorted(scope.classes(argument), key=lambda c: c.name):
                    self.of(target, {}, stacked or last_name(func) in STACKS)


@dataclass
class Scope:
    """What the names of one function stand for: classes, or parts of the checkpoint's config."""

    graph: Graph
    cls: Cls | None
    rel: str
    env: Env
    _deep: int = 0

    def bind(self, call: ast.Call, callee: ast.stmt, *, skip_self: bool = False) -> Env:
        """Parameters of the callee that this call gives a class or a config."""
        names = arguments(callee)
        names = names[1:] if skip_self and names[:1] == ["self"] else names
        given = [*zip(names, call.args, strict=False), *((k.arg, k.value) for k in call.keywords if k.arg)]
        env: Env = {}
        for name, argument in given:
            if found := self.classes(argument):
                env[str(name)] = found
            elif isinstance(value := self.value(argument), Mapping):
                env[str(name)] = value
        return env

    def taken(self, body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
        """Statements that may run: of an `if` that the config decides, only the branch taken."""
        for node in body:
            if isinstance(node, ast.If):
                test = self.value(node.test)
                branches = (
                    (node.body, node.orelse) if test is NOTHING else (node.body if test else node.orelse,)
                )
                yield ast.Expr(node.test)
                for branch in branches:
                    yield from self.taken(branch)
                continue
            if isinstance(node, (ast.With, ast.Try, ast.For, ast.While)):
                for part in children(node):
                    if isinstance(part, ast.expr):
                        yield ast.Expr(part)
                    elif isinstance(part, ast.withitem):
                        yield ast.Expr(part.context_expr)
                yield from self.taken([*node.body, *getattr(node, "orelse", [])])
                continue
            self._assign(node)
            yield node

    def _assign(self, node: ast.stmt) -> None:
        """Remember names that are given classes or parts of the config, also inside nested functions."""
        for child in walk(node):
            if not isinstance(child, ast.Assign):
                continue
            for target in child.targets:
                if isinstance(target, (ast.Name, ast.Attribute)):
                    name = target.id if isinstance(target, ast.Name) else f"self.{target.attr}"
                    known = self.classes(child.value)
                    before = self.env.get(name)
                    if known:
                        self.env[name] = known | before if isinstance(before, frozenset) else known
                    else:
                        self.env[name] = self.value(child.value)

    def classes(self, node: ast.expr) -> Classes:
        """The model classes that an expression may stand for."""
        if isinstance(node, ast.Name):
            if node.id in self.env:
                value = self.env[node.id]
                return value if isinstance(value, frozenset) else frozenset()
            found = self.graph.resolve(self.rel, node.id)
            if isinstance(found, Cls):
                return frozenset({found})
            return found if isinstance(found, frozenset) else frozenset()
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.Subscript):
            return self.classes(node.value)
        if isinstance(node, ast.IfExp):
            return self.classes(node.body) | self.classes(node.orelse)
        if isinstance(node, ast.BoolOp):  # `given or Default`: a class is true
            return next((found for value in node.values if (found := self.classes(value))), frozenset())
        if isinstance(node, ast.Dict):
            return frozenset().union(*(self.classes(v) for v in node.values))
        if isinstance(node, ast.Call):
            return self._returned(node)
        return frozenset()

    def _attribute(self, node: ast.Attribute) -> Classes:
        if not isinstance(node.value, ast.Name):
            return frozenset()
        if node.value.id not in ("self", "cls"):
            built = self.graph.named(self.rel, f"{node.value.id}.{node.attr}")
            return frozenset({built}) if isinstance(built, Cls) else frozenset()
        known = self.env.get(f"self.{node.attr}")
        if isinstance(known, frozenset):
            return known
        found = self.graph.attribute(self.cls, node.attr) if self.cls is not None else None
        if found is None or self._deep > 3:
            return frozenset()
        owner, value = found
        return Scope(self.graph, self.cls, owner.rel, {}, self._deep + 1).classes(value)

    def _returned(self, node: ast.Call) -> Classes:
        """Classes that a helper returns: `TABLE.get(…)`, `self.layer_class()`, `partial(Layer, …)`."""
        func = node.func
        if last_name(func) == "partial" and node.args:
            return self.classes(node.args[0])
        if not isinstance(func, ast.Attribute) or self._deep > 3:
            return frozenset()
        if func.attr == "get":
            return self.classes(func.value)
        if isinstance(func.value, ast.Name) and func.value.id in ("self", "cls") and self.cls is not None:
            found = self.graph.method(self.cls, func.attr)
            if found is not None:
                inner = Scope(self.graph, self.cls, found[1].rel, {}, self._deep + 1)
                returns = [n.value for n in walk(found[1].node) if isinstance(n, ast.Return) and n.value]
                return frozenset().union(*(inner.classes(value) for value in returns))
        return frozenset()

    def value(self, node: ast.expr) -> Any:
        """The value of an expression over the checkpoint's config, NOTHING where it is not known."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self._plain(self.env.get(node.id, NOTHING))
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id == "self":
                return self._plain(self.env.get(f"self.{node.attr}", NOTHING))
            inner = self.value(node.value)
            return inner.get(node.attr, NOTHING) if isinstance(inner, Mapping) else NOTHING
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            inner, index = self.value(node.value), node.slice.value
            known = isinstance(inner, list) and isinstance(index, int) and index < len(inner)
            return inner[index] if known else NOTHING
        if isinstance(node, ast.Call) and last_name(node.func) == "getattr" and len(node.args) == 3:
            inner, name = self.value(node.args[0]), self.value(node.args[1])
            return inner.get(name, self.value(node.args[2])) if isinstance(inner, Mapping) else NOTHING
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self.value(node.operand)
            return NOTHING if inner is NOTHING else not inner
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            left, right = self.value(node.left), self.value(node.comparators[0])
            if left is NOTHING or right is NOTHING:
                return NOTHING
            if isinstance(node.ops[0], (ast.Eq, ast.NotEq)):
                return (left == right) is isinstance(node.ops[0], ast.Eq)
        return NOTHING

    @staticmethod
    def _plain(value: Any) -> Any:
        return NOTHING if value is None or isinstance(value, frozenset) else value

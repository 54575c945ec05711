"""Whether one decoder layer keeps the contract of all-reduce fusion, in either of its two shapes (see `models`)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sglang_guards.source.models.class_graph import Cls, Fn, Graph, calls, last_name
from sglang_guards.source.syntax import evaluate
from sglang_guards.source.syntax.nodes import walk
from sglang_guards.source.syntax.prune import pruned
from sglang_guards.source.tree import Code, Source

_NORMS = "sglang/srt/layers/layernorm.py"
_DECIDES = "should_fuse_mlp_allreduce_with_next_layer"
MARK = "_sglang_needs_allreduce_fusion"
_EXITS = frozenset({"exit", "finish", "postprocess", "complete_now"})
#: Names by which the decision reaches an MLP or MoE, as a parameter or (0.5.16 and later) as a published flag.
_SKIPS = (
    "should_allreduce_fusion",
    "fuse_mlp_allreduce",
    "should_skip_post_experts_all_reduce",
    "should_skip_mlp_all_reduce",
)
_REDUCES = re.compile(r"^(tensor_model_parallel|moe_tensor_model_parallel|moe_expert_parallel)_all_reduce$")
#: Other ways through a decoder that all-reduce fusion never takes.
_OFF = (
    "dsa_enable_prefill_cp", "nsa_enable_prefill_cp", "mla_enable_prefill_cp", "is_dp_attention_enabled",
    "use_reduce_scatter", "mlp_reduce_scatter", "should_use_reduce_scatter",
)  # fmt: skip


@dataclass(frozen=True)
class Contract:
    """How far a model goes along. `kind` is one of these, None where it is not known:

    full; half (the attention side only); none (not part of the framework); broken (a sum is left and nobody
    completes it, or one is completed twice); last lost (the last layer leaves its sum to a layer that does not exist).
    `defers` says whether any of its layers leaves the sum of its MLP or MoE to the next one.
    """

    kind: str | None
    where: str = ""
    why: str = ""
    defers: bool | None = None


#: Kinds of a layer that leaves the sum of its MLP or MoE to the next layer.
DEFERRING = frozenset({"full", "broken", "last lost"})


# -- layer_boundary (0.5.21 and later) ---------------------------------------------------------------------------


def declares(graph: Graph, cls: Cls) -> Contract:
    init, forward = graph.method(cls, "__init__"), graph.method(cls, "forward")
    if init is None or forward is None:
        return Contract(None, cls.rel, f"{cls.name} has no __init__ or no forward")
    declared = [
        (code, call) for code, call in _reachable_calls(graph, cls, init[1]) if _name(call) == "declare_ffn"
    ]
    if not declared:
        return Contract("none", init[1].where(), f"{cls.name} declares no FFN stage")
    exits = [call for _, call in _reachable_calls(graph, cls, forward[1]) if _name(call) in _EXITS]
    where = declared[0][0].where(declared[0][1])
    if not exits:
        return Contract("half", forward[1].where(), f"{cls.name} does not leave its FFN by the boundary")
    return Contract("full", where, f"{cls.name} declares its stages to the layer boundary")


def _name(call: ast.Call) -> str:
    return last_name(call.func)


def _reachable(graph: Graph, cls: Cls, start: Code) -> Sequence[Code]:
    """A method, and the methods of self and functions of model files that it calls, each once."""
    key = ("reachable", cls, start.rel, start.node.lineno)
    if key not in graph.memo:
        graph.memo[key] = list(_reach(graph, cls, start))
    found: Sequence[Code] = graph.memo[key]
    return found


def _reach(graph: Graph, cls: Cls, start: Code) -> Iterator[Code]:
    waiting, seen = [start], {(start.rel, start.node.lineno)}
    while waiting and len(seen) < 40:
        code = waiting.pop(0)
        yield code
        for call, _ in graph.calls(code):
            found = _callee(graph, cls, code, call)
            if found is not None and (found.rel, found.node.lineno) not in seen:
                seen.add((found.rel, found.node.lineno))
                waiting.append(found)


def _callee(graph: Graph, cls: Cls, code: Code, call: ast.Call) -> Code | None:
    func = call.func
    if isinstance(func, ast.Attribute):
        value = func.value
        on_super = isinstance(value, ast.Call) and last_name(value.func) == "super"
        if on_super or (isinstance(value, ast.Name) and value.id in ("self", "cls")):
            owner = next((c for c in graph.mro(cls) if c.rel == code.rel and _owns(graph, c, code)), None)
            found = graph.method(cls, func.attr, owner if on_super else None)
            return found[1] if found else _aliased(graph, cls, func.attr)
    if isinstance(func, ast.Name):
        function = graph.resolve(code.rel, func.id)
        if isinstance(function, Fn):
            return graph.function(function)
    return None


def _aliased(graph: Graph, cls: Cls, name: str) -> Code | None:
    """The function behind a class attribute such as `stage_facts = staticmethod(function)`."""
    found = graph.attribute(cls, name)
    if found is None or not isinstance(found[1], ast.Call) or not found[1].args:
        return None
    function = graph.resolve(found[0].rel, last_name(found[1].args[0]))
    return graph.function(function) if isinstance(function, Fn) else None


def _owns(graph: Graph, cls: Cls, code: Code) -> bool:
    name = getattr(code.node, "name", "")
    own = graph.own(cls, name)
    return own is not None and own.node.lineno == code.node.lineno


def _reachable_calls(graph: Graph, cls: Cls, start: Code) -> Iterator[tuple[Code, ast.Call]]:
    for code in _reachable(graph, cls, start):
        for call, _ in graph.calls(code):
            yield code, call


# -- communicator (up to 0.5.20) ---------------------------------------------------------------------------------


def communicates(graph: Graph, cls: Cls) -> Contract:
    init, forward = graph.method(cls, "__init__"), graph.method(cls, "forward")
    if init is None or forward is None:
        return Contract(None, cls.rel, f"{cls.name} has no __init__ or no forward")
    made = list(_communicators(graph, cls, init[1]))
    if not made:
        return Contract("none", init[1].where(), f"{cls.name} has no LayerCommunicator")
    deciding = [c for c, call in _reachable_calls(graph, cls, forward[1]) if _name(call) == _DECIDES]
    if not deciding:
        return Contract(
            "half", forward[1].where(), f"{cls.name} never asks whether the next layer takes its sum"
        )
    for code in {c.where(): c for c in deciding}.values():
        if trouble := _hands_over(graph, cls, code):
            return trouble
    if trouble := _last_layer(cls, made, sure=not _takes_back(graph, deciding[0])) or _fused_norm(
        graph, cls, init[1]
    ):
        return trouble
    if trouble := _mlp_skips(graph, cls, init[1], deciding):
        return trouble
    return Contract(
        "full", deciding[0].where(_first(deciding[0])), f"{cls.name} implements the whole contract"
    )


def _communicators(graph: Graph, cls: Cls, init: Code) -> Iterator[tuple[Code, ast.Call]]:
    """Calls whose result becomes the layer's communicator, or one of several."""
    for code in _reachable(graph, cls, init):
        for node in graph.nodes(code):
            if not isinstance(node, ast.Assign):
                continue
            if any(
                isinstance(t, ast.Attribute) and t.attr.endswith("layer_communicator") for t in node.targets
            ):
                value = node.value.elt if isinstance(node.value, ast.ListComp) else node.value
                for one in value.elts if isinstance(value, (ast.List, ast.Tuple)) else [value]:
                    if isinstance(one, ast.Call):
                        yield code, one


def _first(code: Code) -> ast.AST:
    return next(call for call, _ in calls(code.node) if _name(call) == _DECIDES)


def _hands_over(graph: Graph, cls: Cls, code: Code) -> Contract | None:
    """On every way on which the sum is left to the next layer the tensor is marked and not postprocessed."""
    decided = _decided(graph, code)
    helpers = _marking_helpers(graph, code)
    told = set(_told(graph, code))
    seeds = {_DECIDES, MARK, "postprocess_layer", *_SKIPS, *decided, *helpers, *told}
    body = pruned(getattr(code.node, "body", []), seeds)
    pinned = {_DECIDES: True} | dict.fromkeys(_OFF, False)
    for path in evaluate.paths(body, evaluate.World(pinned)):
        left = any(path.seen.get(name) is True for name in decided)
        nodes = [node for step in path.steps for node in step.live]
        marked = any(_marks(step.node) for step in path.steps)
        marked = marked or any(isinstance(n, ast.Call) and _name(n) in helpers for n in nodes)
        completed = any(isinstance(n, ast.Call) and _name(n) == "postprocess_layer" for n in nodes)
        if left and (completed or not marked):
            what = "completes it as well" if marked else "does not mark the tensor"
            return Contract("broken", code.where(), f"{cls.name} leaves its sum to the next layer and {what}")
        if marked and not left:
            return Contract("broken", code.where(), f"{cls.name} marks a sum that it has completed")
        runs = any(isinstance(n, ast.Call) and told & set(_attributes(n.func)) for n in nodes)
        if left and runs and not any(_passes(node, decided) for node in nodes):
            return Contract(
                "broken", code.where(), f"{cls.name} does not tell its MLP that the next layer takes the sum"
            )
    return None


def _marking_helpers(graph: Graph, code: Code) -> set[str]:
    """Functions called here that mark the tensor."""
    found = {
        _name(c): graph.resolve(code.rel, c.func.id)
        for c, _ in graph.calls(code)
        if isinstance(c.func, ast.Name)
    }
    codes = {name: graph.function(fn) for name, fn in found.items() if isinstance(fn, Fn)}
    return {
        n for n, c in codes.items() if c and any(_marks(x) for x in walk(c.node) if isinstance(x, ast.stmt))
    }


def _decided(graph: Graph, code: Code) -> set[str]:
    """Names that hold the decision."""
    return {
        target.id
        for node in graph.nodes(code)
        if isinstance(node, ast.Assign)
        and any(_name(c) == _DECIDES for c, _ in graph.calls_below(node.value))
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _marks(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and any(
        isinstance(t, ast.Attribute) and t.attr == MARK for t in node.targets
    )


def _passes(node: ast.AST, decided: set[str]) -> bool:
    if not isinstance(node, ast.Call):
        return False
    given = [*node.args, *(k.value for k in node.keywords)]
    if any(isinstance(n, ast.Name) and n.id in decided for argument in given for n in walk(argument)):
        return True
    return any(
        k.arg in _SKIPS and isinstance(k.value, ast.Constant) and k.value.value is True for k in node.keywords
    )


def _last_layer(cls: Cls, made: list[tuple[Code, ast.Call]], sure: bool) -> Contract | None:
    """Without `is_last_layer` the last layer leaves its sum to a layer that does not exist."""
    for code, call in made:
        if not any(k.arg == "is_last_layer" for k in call.keywords):
            return Contract(
                "last lost" if sure else None,
                code.where(call),
                f"{cls.name} does not say which layer is last",
            )
    return None


def _takes_back(graph: Graph, code: Code) -> bool:
    """Whether the layer may turn the decision into a no afterwards."""
    names = _decided(graph, code)
    return any(
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Constant)
        and any(isinstance(target, ast.Name) and target.id in names for target in node.targets)
        for node in graph.nodes(code)
    )


def _fused_norm(graph: Graph, cls: Cls, init: Code) -> Contract | None:
    for code in _reachable(graph, cls, init):
        for node in graph.nodes(code):
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
                continue
            names = {t.attr for t in node.targets if isinstance(t, ast.Attribute)}
            if names & {"input_layernorm", "norm"} and not _has_kernel(graph.source, _name(node.value)):
                return Contract("half", code.where(node), f"{_name(node.value)} has no fused kernel")
    return None


def _has_kernel(source: Source, norm: str) -> bool:
    for name in (norm, "RMSNorm") if norm.endswith("RMSNorm") else (norm,):
        if source.maybe(_NORMS, f"{name}.forward_with_allreduce_fusion") is not None:
            return name == norm or source.maybe(_NORMS, norm) is not None
    return False


def _mlp_skips(graph: Graph, cls: Cls, init: Code, deciding: list[Code]) -> Contract | None:
    """No MLP or MoE that receives the decision reduces when it is told not to."""
    told = {name for code in deciding for name in _told(graph, code)}
    for code in _reachable(graph, cls, init):
        for node in graph.nodes(code):
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
                continue
            if not told & {t.attr for t in node.targets if isinstance(t, ast.Attribute)}:
                continue
            target = graph.resolve(code.rel, _name(node.value))
            if isinstance(target, Cls) and (line := _reduces_anyway(graph, target)):
                return Contract(
                    "broken", line, f"{target.name} reduces although the next layer takes the sum"
                )
    return None


def _told(graph: Graph, code: Code) -> Iterator[str]:
    """Attributes of the layer that are called with the decision, or while it is published."""
    decided = _decided(graph, code)
    for node in graph.nodes(code):
        if isinstance(node, ast.Call) and _passes(node, decided):
            yield from _attributes(node.func)
        if isinstance(node, ast.With) and any(_passes(item.context_expr, decided) for item in node.items):
            for call in (c for part in node.body for c, _ in graph.calls_below(part)):
                yield from _attributes(call.func)


def _attributes(func: ast.expr) -> Iterator[str]:
    while isinstance(func, ast.Attribute):
        yield func.attr
        func = func.value


def _reduces_anyway(graph: Graph, cls: Cls) -> str | None:
    """Where this MLP or MoE reduces although it was told not to; several layers of a model may hold the same one."""
    key = ("reduces anyway", cls)
    if key not in graph.memo:
        graph.memo[key] = _reduction_left(graph, cls)
    found: str | None = graph.memo[key]
    return found


def _reduction_left(graph: Graph, cls: Cls) -> str | None:
    forward = graph.method(cls, "forward")
    if forward is None:
        return None
    linears = set() if _linears_obey(graph.source) else _reducing_linears(graph, cls)
    world = evaluate.World(dict.fromkeys(_SKIPS, True) | dict.fromkeys(_OFF, False))
    for code in _reachable(graph, cls, forward[1]):
        reducing = {id(call) for call, _ in graph.calls(code) if _reduces(call, linears)}
        if not reducing:
            continue
        names = {_name(call) for call, _ in graph.calls(code) if id(call) in reducing}
        body = pruned(getattr(code.node, "body", []), {*names, *_SKIPS})
        for path in evaluate.paths(body, world):
            for node in (n for step in path.steps for n in step.live):
                if id(node) in reducing:
                    return code.where(node)
    return None


def _reduces(call: ast.Call, linears: set[str]) -> bool:
    if _REDUCES.match(_name(call)):
        return True
    return _name(call) in linears and not any(k.arg == "skip_all_reduce" for k in call.keywords)


def _linears_obey(source: Source) -> bool:
    """Whether row-parallel projections read the published decision by themselves (0.5.16 and later)."""
    forward = source.maybe("sglang/srt/layers/linear.py", "RowParallelLinear.forward")
    return forward is not None and any(
        _name(call) == "should_skip_mlp_all_reduce" for call, _ in calls(forward.node)
    )


def _reducing_linears(graph: Graph, cls: Cls) -> set[str]:
    """Attributes that hold a row-parallel projection which sums over the ranks."""
    init = graph.method(cls, "__init__")
    found: set[str] = set()
    for code in _reachable(graph, cls, init[1]) if init else ():
        for node in graph.nodes(code):
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
                continue
            if _name(node.value) != "RowParallelLinear":
                continue
            given = {k.arg: k.value for k in node.value.keywords}.get("reduce_results")
            if not (isinstance(given, ast.Constant) and given.value is False):
                found |= {t.attr for t in node.targets if isinstance(t, ast.Attribute)}
    return found

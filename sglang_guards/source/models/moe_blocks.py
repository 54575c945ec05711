"""The MoE blocks that an architecture's decoder layers build, and how their forward methods call each other.

A block is a class that makes its own `TopK`. It is looked for in everything that the decoder layers name, so that a
layer's dense MLP and its norms do not matter.
"""

from __future__ import annotations

import ast
import re

from sglang_guards.source.models.class_graph import Cls, Graph
from sglang_guards.source.models.fusion_contract import decoder_classes, graph_of
from sglang_guards.source.syntax.nodes import walk
from sglang_guards.source.syntax.slicing import Unknown
from sglang_guards.source.tree import Code, Source

_MAKES_TOPK = re.compile(r"self\.topk\b[^=\n]*=\s*\(?\s*(?:HashTopK|TopK|\w*TopK)\b")
#: Methods of a block that serve all-to-all backends, overlapped stages, other platforms.
_OTHER_PATHS = re.compile(
    r"deepep|a2a|mega|dwdp|cpu|npu|xpu|^op_|_op_|nixl|mooncake|flashinfer", re.IGNORECASE
)
_DEPTH = 3


def blocks(source: Source, architecture: str) -> tuple[Cls, ...]:
    """The MoE block classes below an architecture; Unknown where none was found."""
    key = f"moe blocks {architecture}"
    if key not in source.memo:
        graph = graph_of(source)
        layers = decoder_classes(source, architecture)
        found: dict[Cls, None] = {}
        seen: set[Cls] = set()
        for layer in layers:
            _collect(graph, layer, found, seen, 0)
        source.memo[key] = tuple(found)
    made = source.memo[key]
    if not isinstance(made, tuple) or not made:
        raise Unknown(f"no MoE block of {architecture} was found")
    return made


def _collect(graph: Graph, cls: Cls, found: dict[Cls, None], seen: set[Cls], depth: int) -> None:
    if cls in seen or depth > _DEPTH:
        return
    seen.add(cls)
    if any(_MAKES_TOPK.search(graph.text(owner)) for owner in graph.mro(cls)):
        found[cls] = None
        return
    for owner in graph.mro(cls):
        for name in dict.fromkeys(re.findall(r"\b(?:[a-z]\w*\.)?[A-Z]\w+", graph.text(owner))):
            target = graph.named(owner.rel, name)
            if isinstance(target, Cls):
                _collect(graph, target, found, seen, depth + 1)


def plain_methods(graph: Graph, block: Cls) -> list[Code]:
    """The block's methods that run without an all-to-all backend, nearest definition first."""
    made: dict[str, Code] = {}
    for owner in graph.mro(block):
        for name in re.findall(r"^    (?:async )?def (\w+)\(", graph.text(owner), re.MULTILINE):
            if name not in made and not _OTHER_PATHS.search(name):
                code = graph.own(owner, name)
                if code is not None:
                    made[name] = code
    return list(made.values())


def topk_calls(code: Code) -> list[ast.Call]:
    """Calls of the block's router in a method: `self.topk(…)`."""
    return [
        node
        for node in walk(code.node)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "topk"
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "self"
    ]


def keywords(call: ast.Call) -> set[str | None]:
    """Names of a call's keyword arguments; None stands for `**more`."""
    return {keyword.arg for keyword in call.keywords}


def passes_extra(code: Code, name: str) -> bool:
    """Whether a method puts `name` into a dict that it may unpack into a call."""
    for node in walk(code.node):
        if isinstance(node, ast.Constant) and node.value == name:
            return True
        if isinstance(node, ast.keyword) and node.arg == name:
            return True
    return False

"""Probes of two-batch and single-batch overlap, by architecture."""

from __future__ import annotations

import ast
import re

from sglang_guards.source.models.class_graph import Cls
from sglang_guards.source.models.fusion_contract import decoder_classes, graph_of, model_classes
from sglang_guards.source.models.moe_blocks import blocks, plain_methods
from sglang_guards.source.syntax.nodes import walk
from sglang_guards.source.tree import Answer, Source, Unknown, probe

STRATEGY = "sglang/srt/batch_overlap/operations_strategy.py"
_RUNS = re.compile(r"\b(?:model_forward_maybe_tbo|model_forward_stages|init_new_tbo)\(")


@probe("tbo_strategy_exists", "Two-batch overlap has a strategy for the architecture's decoder layers.")
def tbo_strategy_exists(source: Source, architecture: str) -> Answer:
    code = source.function(STRATEGY, "OperationsStrategy.init_new_tbo")
    names, bases = set(), set()
    for node in walk(code.node):
        if isinstance(node, ast.Compare) and isinstance(node.left, ast.Name):
            values = [*node.comparators]
            names |= {v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str)}
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            bases |= {n.id for n in walk(node.args[1]) if isinstance(n, ast.Name)}
    last = code.node.body[-1] if isinstance(code.node, ast.FunctionDef) else None
    refuses = any(isinstance(n, ast.Raise) for n in walk(code.node))
    if not names or not refuses or last is None:
        raise Unknown("the choice of a strategy has another shape")
    graph, found = graph_of(source), set()
    layers = decoder_classes(source, architecture)
    for layer in layers:
        found.add(layer.name in names or any(base.name in bases for base in graph.mro(layer)))
    if len(found) != 1:
        raise Unknown(
            f"{architecture} stacks layers of several kinds" if found else "no decoder layer was found"
        )
    return Answer(found.pop(), code.where(), ", ".join(sorted(layer.name for layer in layers)))


@probe("model_runs_tbo", "The architecture's model hands its layers to two-batch overlap.")
def model_runs_tbo(source: Source, architecture: str) -> Answer:
    graph = graph_of(source)
    reached = model_classes(source, architecture)
    if not reached:
        raise Unknown(f"the model of {architecture} was not found")
    for cls in reached:
        if place := _RUNS.search(graph.text(cls)):
            line = source.line(cls.rel, re.escape(place[0]))
            return Answer(True, f"{cls.rel}:{line}")
    return Answer(False, reached[0].rel)


@probe(
    "sbo_reads_overwritten_input",
    "Without an all-to-all backend, single-batch overlap computes the shared expert after the runner wrote its input.",
)
def sbo_reads_overwritten_input(source: Source, architecture: str) -> Answer:
    graph = graph_of(source)
    found: dict[bool, str] = {}
    for block in blocks(source, architecture):
        value, where = _late_hook(source, block)
        found.setdefault(value, where)
    if len(found) != 1:
        raise Unknown(f"{architecture} has several MoE blocks")
    value, where = next(iter(found.items()))
    del graph
    return Answer(value, where)


def _late_hook(source: Source, block: Cls) -> tuple[bool, str]:
    """Whether a plain forward registers a hook before the combine that reads the block's own input."""
    graph = graph_of(source)
    for code in plain_methods(graph, block):
        for node in walk(code.node):
            if not isinstance(node, ast.FunctionDef) or node is code.node or "pre_combine" not in node.name:
                continue
            own = {a.arg for a in (*node.args.args, *node.args.kwonlyargs)}
            read = {n.id for n in walk(node) if isinstance(n, ast.Name)}
            inputs = {a.arg for a in code.node.args.args} if isinstance(code.node, ast.FunctionDef) else set()
            if "hidden_states" in (read & inputs) - own:
                return True, code.where(node)
    text = "".join(graph.text(owner) for owner in graph.mro(block))
    if (
        "_fuse_shared_experts_inside_sbo" in text
        and "pre_combine_hook" in text.split("def forward_deepep")[0]
    ):
        raise Unknown(f"the hook of {block.name} has another shape")
    return False, block.rel

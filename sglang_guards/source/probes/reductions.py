"""Probes of how often an architecture sums its experts' output over the ranks when the layer's exit may do it."""

from __future__ import annotations

import ast
import re

from sglang_guards.source.models.fusion_contract import decoder_classes, graph_of
from sglang_guards.source.models.moe_blocks import blocks, plain_methods
from sglang_guards.source.probes.launch_faults import MOE_UTILS
from sglang_guards.source.syntax.nodes import walk
from sglang_guards.source.syntax.shape import names_in
from sglang_guards.source.tree import Answer, Source, Unknown, probe

BOUNDARY = "sglang/srt/layers/layer_boundary"
#: What leaves the sum to the exit, and what may do so by the layer's communicator.
_LEAVES = frozenset({"should_skip_post_experts_all_reduce", "should_use_dp_reduce_scatterv"})
_MAY_LEAVE = re.compile(r"reduce_scatter|skip|fuse")


def _sums(source: Source, architecture: str) -> tuple[list[frozenset[str]], str]:
    """The names in the tests in front of each all-reduce of the MoE block, and the first one's place."""
    graph = graph_of(source)
    found: list[frozenset[str]] = []
    where = ""
    for block in blocks(source, architecture):
        for code in plain_methods(graph, block):
            for node in walk(code.node):
                if isinstance(node, ast.If) and any("all_reduce(" in ast.unparse(part) for part in node.body):
                    if isinstance(node.test, ast.UnaryOp) and isinstance(node.test.op, ast.Not):
                        raise Unknown(f"{code.where(node)} sums where a condition does not hold")
                    found.append(frozenset(names_in(node.test)))
                    where = where or code.where(node)
    if not found:
        raise Unknown(f"no all-reduce in the MoE block of {architecture}")
    return found, where


def _exit(source: Source, architecture: str) -> str:
    """How the layers leave DP attention: «communicator», «scatter» alone, or «sum»."""
    graph = graph_of(source)
    kinds = set()
    for layer in decoder_classes(source, architecture):
        text = "".join(graph.text(owner) for owner in graph.mro(layer))
        if "reduce_scatter" in text:
            kinds.add("sum")
        elif re.search(r"\bdp_scatter\(", text):
            kinds.add("scatter")
        elif "LayerCommunicator(" in text:
            kinds.add("communicator")
        else:
            kinds.add("")
    if len(kinds) != 1 or "" in kinds:
        raise Unknown(f"how the layers of {architecture} leave DP attention was not found")
    return str(kinds.pop())


@probe(
    "experts_never_summed", "The MoE block leaves its sum to the layer's exit, and the exit only scatters."
)
def experts_never_summed(source: Source, architecture: str) -> Answer:
    source.need(MOE_UTILS)
    if source.ask("reduce_scatterv_sums").value is not True:
        return Answer(False, None, "no block leaves its sum to the exit")
    if source.exists(BOUNDARY):
        return Answer(False, BOUNDARY, "the framework sums")
    tests, where = _sums(source, architecture)
    leaves = [bool(test & _LEAVES) for test in tests]
    if not all(leaves):
        return Answer(False, where)
    return Answer(_exit(source, architecture) == "scatter", where)


@probe("experts_summed_twice", "The MoE block all-reduces its output whatever the layer's exit does.")
def experts_summed_twice(source: Source, architecture: str) -> Answer:
    source.need(MOE_UTILS)
    if source.ask("reduce_scatterv_sums").value is not True:
        return Answer(False, None, "the exit does not sum")
    if source.exists(BOUNDARY):
        return Answer(False, BOUNDARY, "the framework sums")
    tests, where = _sums(source, architecture)
    if any(_MAY_LEAVE.search(name) for test in tests for name in test):
        return Answer(False, where)
    if any(test - {"self", "tp_size", "ep_size", "moe_tp_size", "moe_ep_size"} for test in tests):
        raise Unknown("the all-reduce depends on something else")
    if _exit(source, architecture) == "scatter":
        return Answer(False, where, "the exit only scatters")
    return Answer(True, where)

"""Probes of expert placement (EPLB): who turns logical expert ids into the physical ones that moved."""

from __future__ import annotations

import ast
import re

from sglang_guards.source.models.fusion_contract import graph_of
from sglang_guards.source.models.moe_blocks import blocks, keywords, passes_extra, plain_methods, topk_calls
from sglang_guards.source.syntax.nodes import walk
from sglang_guards.source.tree import Answer, Source, Unknown, probe

TOPK = "sglang/srt/layers/moe/topk.py"
DISPATCH = "sglang/srt/eplb/expert_location_dispatch.py"
_MANAGER = "sglang/srt/eplb/eplb_manager.py"
_WEIGHTS = "routed_experts_weights_of_layer"
_INFO = "expert_location_dispatch_info"


@probe("topk_finds_placement", "The router itself asks where the experts are when its caller does not say.")
def topk_finds_placement(source: Source) -> Answer:
    rel = source.need(TOPK)
    line = source.line(rel, rf"^ +{_INFO} = \w+\.init_new\(")
    if line is not None:
        return Answer(True, f"{rel}:{line}")
    router = source.function(rel, "TopK")
    anew = [
        n
        for n in walk(router.node)
        if isinstance(n, ast.Name) and n.id == _INFO and isinstance(n.ctx, ast.Store)
    ]
    if anew:
        raise Unknown(f"where TopK takes {_INFO} from was not found")
    known = source.line(rel, rf"\b{_INFO}\b")
    elsewhere = source.line(rel, rf"^ +{_INFO} = ") is not None or "init_new" in (source.text(rel) or "")
    return Answer(False if known and not elsewhere else None, f"{rel}:{known}" if known else None)


@probe(
    "forward_names_placement",
    "The forward without an all-to-all backend tells the router where the experts are (by architecture).",
)
def forward_names_placement(source: Source, architecture: str) -> Answer:
    own = source.ask("topk_finds_placement")
    if own.value is not False:
        return Answer(own.value, own.where, own.detail)
    graph = graph_of(source)
    found: dict[bool, str] = {}
    for block in blocks(source, architecture):
        for code in plain_methods(graph, block):
            for call in topk_calls(code):
                names = keywords(call)
                told = _INFO in names or (None in names and passes_extra(code, _INFO))
                found.setdefault(told, code.where(call))
    if len(found) != 1:
        raise Unknown(
            f"{architecture} calls its router in ways that differ" if found else "no call of a router"
        )
    value, where = next(iter(found.items()))
    return Answer(value, where)


@probe(
    "replicas_same_on_all_ranks",
    "Without an all-to-all backend every rank picks the same replica of an expert.",
)
def replicas_same_on_all_ranks(source: Source) -> Answer:
    rel = source.need(DISPATCH)
    code = source.function(DISPATCH, "ExpertLocationDispatchInfo.init_new")
    for node in walk(code.node):
        if isinstance(node, ast.keyword) and node.arg == "rank_invariant":
            return Answer(True, code.where(node.value))
    # Positively the older shape: the map that is handed on was made for this rank.
    for node in walk(code.node):
        if isinstance(node, ast.keyword) and node.arg == "partial_logical_to_rank_dispatch_physical_map":
            return Answer(False, f"{rel}:{node.value.lineno}")
    raise Unknown("how a rank picks among replicas was not found")


@probe(
    "model_hands_out_expert_weights",
    "The model class names the expert weights that EPLB moves (by architecture).",
)
def model_hands_out_expert_weights(source: Source, architecture: str) -> Answer:
    rel = source.need(_MANAGER)
    line = source.line(rel, rf"\bmodel\.{_WEIGHTS}\b")
    if line is None:
        raise Unknown("what EPLB asks of the model was not found")
    graph = graph_of(source)
    entry = graph.holder(architecture)
    if entry is None:
        raise Unknown(f"{architecture} was not found")
    for owner in graph.mro(entry):
        text = graph.text(owner)
        if re.search(
            rf"^    def {_WEIGHTS}\(|^ +self\.{_WEIGHTS}\b.* = |^    {_WEIGHTS}\b", text, re.MULTILINE
        ):
            return Answer(True, owner.rel)
        if "def __getattr__(" in text or f'"{_WEIGHTS}"' in text:
            raise Unknown(f"{owner.name} may hand out its experts' weights in another way")
    return Answer(False, f"{rel}:{line}")

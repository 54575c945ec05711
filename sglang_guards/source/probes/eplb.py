"""Probes of expert placement (EPLB): who turns logical expert ids into the physical ones that moved."""

from __future__ import annotations

import ast

from sglang_guards.source.models.fusion_contract import graph_of
from sglang_guards.source.models.moe_blocks import blocks, keywords, passes_extra, plain_methods, topk_calls
from sglang_guards.source.syntax.nodes import walk
from sglang_guards.source.tree import Answer, Source, Unknown, probe

TOPK = "sglang/srt/layers/moe/topk.py"
DISPATCH = "sglang/srt/eplb/expert_location_dispatch.py"
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

"""Probes of what a speculative draft carries from step to step, and from a prefill node to a decode node."""

from __future__ import annotations

import ast

from sglang_guards.source.syntax.nodes import walk
from sglang_guards.source.syntax.shape import upright
from sglang_guards.source.tree import Answer, Source, Unknown, probe

_SPEC_INFO = "sglang/srt/speculative/spec_info.py"
_SPEC_UTILS = "sglang/srt/speculative/spec_utils.py"
EAGLE_INFO = "sglang/srt/speculative/eagle_info.py"
DISAGGREGATION = "sglang/srt/disaggregation"


@probe(
    "decode_node_keeps_draft_topk",
    "A draft's top-k seed of sparse attention goes from the prefill node to the decode node.",
)
def decode_node_keeps_draft_topk(source: Source) -> Answer:
    seed = source.line(source.need(EAGLE_INFO), r"^ +dsa_topk_indices\b\s*:")
    if seed is None:
        draft = source.function(EAGLE_INFO, "EagleDraftInput")
        if "dsa_topk" in (source.text(EAGLE_INFO) or ""):
            raise Unknown("what the draft keeps of its sparse attention is not known")
        return Answer(True, draft.where(), "the draft keeps no seed")
    for rel in source.files(DISAGGREGATION, "*.py"):
        if (line := source.line(rel, r"\b\w*dsa_topk_indices\b")) is not None:
            return Answer(True, f"{rel}:{line}")
    if not source.files(DISAGGREGATION, "decode.py"):
        raise Unknown("the decode node was not found")
    return Answer(False, f"{EAGLE_INFO}:{seed}")


@probe(
    "decode_node_makes_draft_input",
    "A decode node makes a draft input for requests from a prefill node (by algorithm).",
)
def decode_node_makes_draft_input(source: Source, algorithm: str) -> Answer:
    maker = source.function(_SPEC_INFO, "SpeculativeAlgorithm.build_disagg_draft_input")
    name = algorithm.lower()
    own = {f"is_{name}", "is_dflash_family"}
    asked = [
        node for node in walk(maker.node) if isinstance(node, ast.Attribute) and node.attr.startswith("is_")
    ]
    for node in asked:
        if node.attr in own:
            upright(maker.node, node.attr)
            return Answer(True, maker.where(node))
    rel = source.need(_SPEC_UTILS)
    if not any(node.attr == "is_eagle" for node in asked) or name not in ("dflash", "dspark"):
        raise Unknown(f"how a decode node prepares {algorithm} was not found")
    code = source.function(rel, "spec_prepare_for_decode")
    for part in walk(code.node):
        if isinstance(part, ast.If) and any(f".{test}()" in ast.unparse(part.test) for test in own):
            first = ast.unparse(part.body[0])
            if first == "batch.spec_info.prepare_for_decode(batch)":
                return Answer(False, code.where(part.body[0]))
    raise Unknown(f"what the first decode step of {algorithm} reads was not found")

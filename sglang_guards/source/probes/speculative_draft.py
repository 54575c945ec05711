"""Probes of what a speculative draft carries from step to step, and from a prefill node to a decode node."""

from __future__ import annotations

from sglang_guards.source.tree import Answer, Source, Unknown, probe

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

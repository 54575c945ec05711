"""Probes of pipeline stages: what a later stage reads that the earlier one must hand over."""

from __future__ import annotations

from sglang_guards.source.probes.launch_faults import DEEPSEEK
from sglang_guards.source.tree import Answer, Source, Unknown, probe


@probe(
    "stages_hand_over_topk",
    "A pipeline stage hands the top-k indices of sparse attention to the next, whose first layer may reuse them.",
)
def stages_hand_over_topk(source: Source) -> Answer:
    rel = source.need(DEEPSEEK)
    reuses = source.line(rel, r"^ +self\.skip_topk = ")
    if reuses is None:
        return Answer(True, rel, "no layer reuses the indices of another")
    if (
        line := source.line(rel, r"pp_proxy_tensors(?:\.tensors)?(?:\.get\(|\[)[\"']topk_indices")
    ) is not None:
        return Answer(True, f"{rel}:{line}")
    if "topk_indices" in (source.text("sglang/srt/layers/layer_boundary/boundary.py") or ""):
        raise Unknown("the layer boundary hands the indices over")
    start = source.line(rel, r"^ +residual = pp_proxy_tensors\[[\"']residual[\"']\]")
    if start is None:
        raise Unknown("what a stage receives was not found")
    return Answer(False, f"{rel}:{start}")


@probe(
    "topk_reuse_has_offset", "Which layers reuse top-k indices follows the config's index_skip_topk_offset."
)
def topk_reuse_has_offset(source: Source) -> Answer:
    for rel in (DEEPSEEK, "sglang/srt/configs/model_config.py"):
        if (line := source.line(rel, r"\bindex_skip_topk_offset\b")) is not None:
            return Answer(True, f"{rel}:{line}")
    rel = source.need(DEEPSEEK)
    line = source.line(rel, r"max\(layer_id - 1, 0\) % ")
    return Answer(False if line else None, f"{rel}:{line}" if line else None)

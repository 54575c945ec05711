"""Probes of pipeline stages: what a later stage reads that the earlier one must hand over."""

from __future__ import annotations

import re

from sglang_guards.source.models.fusion_contract import graph_of
from sglang_guards.source.probes.launch_faults import DEEPSEEK
from sglang_guards.source.tree import Answer, Source, Unknown, probe

_TRITON = "sglang/srt/layers/attention/triton_backend.py"
_POOL = "sglang/srt/mem_cache/memory_pool.py"
#: Where warm-up makes the tensors that a later stage receives, newest first.
_WARM_UP = (
    "sglang/srt/model_executor/runner/base_runner.py",
    "sglang/srt/model_executor/cuda_graph_runner.py",
)


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


@probe(
    "triton_attention_reads_own_stage",
    "Triton attention takes the head size from a layer of its own pipeline stage, not from layer 0.",
)
def triton_attention_reads_own_stage(source: Source) -> Answer:
    rel = source.need(_TRITON)
    text = source.text(rel) or ""
    if re.search(r"get_value_buffer\(\s*model_runner\.token_to_kv_pool\.start_layer\s*\)", text):
        line = source.line(rel, r"model_runner\.token_to_kv_pool\.start_layer")
        return Answer(True, f"{rel}:{line}" if line else rel)
    line = source.line(rel, r"token_to_kv_pool\.get_value_buffer\(0\)")
    by_stage = source.line(source.need(_POOL), r"return self\.v_buffer\[layer_id - self\.start_layer\]")
    if line is None or by_stage is None:
        raise Unknown("from which layer Triton attention takes its head size was not found")
    return Answer(False, f"{rel}:{line}")


@probe(
    "stage_reads_folded_residual",
    "A later pipeline stage reads a residual that warm-up does not make where hyper-connections fold it (by "
    "architecture).",
)
def stage_reads_folded_residual(source: Source, architecture: str) -> Answer:
    entry = graph_of(source).holder(architecture)
    if entry is None:
        raise Unknown(f"{architecture} was not found")
    rel = entry.rel
    if source.line(rel, r"\bhc_mult\b") is None:
        return Answer(False, rel, "the model has no hyper-connections")
    line = source.line(rel, r"^ +residual = pp_proxy_tensors\[[\"']residual[\"']\]")
    if line is None:
        return Answer(False, rel, "no stage insists on a residual")
    for warm_up in _WARM_UP:
        if source.text(warm_up) is not None and source.line(warm_up, r"^ +(?:el)?if not is_mhc:") is not None:
            return Answer(True, f"{rel}:{line}")
    raise Unknown("what warm-up hands to a later stage was not found")

"""Probes of the reported combinations of parallelism, speculative decoding and determinism."""

from __future__ import annotations

import ast

from sglang_guards.source.probes.moe_faults import at, names_in
from sglang_guards.source.tree import Answer, Source, Unknown, probe

SERVER_ARGS = "sglang/srt/server_args.py"
VALIDATION = "sglang/srt/arg_groups/validation_hook.py"
COMMUNICATOR = "sglang/srt/layers/communicator.py"
MOE_UTILS = "sglang/srt/layers/moe/utils.py"
GPT_OSS = "sglang/srt/models/gpt_oss.py"
DEEPSEEK = "sglang/srt/models/deepseek_v2.py"
FUSED_MOE_LAYER = "sglang/srt/layers/moe/fused_moe_triton/layer.py"
FUSED_MOE = (
    "sglang/srt/layers/moe/moe_runner/triton_utils/fused_moe.py",
    "sglang/srt/layers/moe/fused_moe_triton/fused_moe.py",
)
EAGLE3_FILES = (
    "sglang/srt/model_executor/model_runner_components/spec_aux_hidden_state.py",
    "sglang/srt/model_executor/model_runner.py",
)
MODEL_CONFIG = "sglang/srt/configs/model_config.py"
RUNTIME_CONTEXT = "sglang/srt/runtime_context.py"
PARALLEL_STATE = "sglang/srt/distributed/parallel_state.py"


@probe(
    "mixed_chunk_spec_assertion",
    "The check of mixed chunk with speculation says the opposite of what it means.",
)
def mixed_chunk_spec_assertion(source: Source) -> Answer:
    for rel in (SERVER_ARGS, VALIDATION):
        if where := at(source, rel, r"enable_mixed_chunk is required for speculative decoding"):
            return Answer(True, where)
    source.need(SERVER_ARGS)
    return Answer(False, at(source, VALIDATION, r"enable_mixed_chunk is not supported with"))


@probe(
    "reduce_scatterv_sums",
    "Under DP attention with EP the layer's exit sums the ranks' outputs (reduce_scatterv).",
)
def reduce_scatterv_sums(source: Source) -> Answer:
    rule = source.maybe(MOE_UTILS, "should_use_dp_reduce_scatterv")
    if rule is None:
        return Answer(False, None, "no reduce_scatterv in this tree")
    return Answer(True, rule.where())


@probe(
    "reduce_scatterv_needs_full_dp", "The reduce_scatterv is used only where every rank is its own DP rank."
)
def reduce_scatterv_needs_full_dp(source: Source) -> Answer:
    rule = source.function(MOE_UTILS, "should_use_dp_reduce_scatterv")
    for node in ast.walk(rule.node):
        if isinstance(node, ast.Compare) and {"tp_size", "attn_dp_size"} <= set(names_in(node)):
            return Answer(True, rule.where(node))
    return Answer(False, rule.where())


@probe(
    "gpt_oss_sums_twice", "gpt-oss all-reduces its experts' output although the layer's exit sums it again."
)
def gpt_oss_sums_twice(source: Source) -> Answer:
    if source.ask("reduce_scatterv_sums").value is not True:
        return Answer(False, None, "the exit does not sum")
    code = source.function(GPT_OSS, "GptOssSparseMoeBlock.forward_normal")
    for node in ast.walk(code.node):
        if isinstance(node, ast.If) and any(
            "tensor_model_parallel_all_reduce" in set(names_in(s)) for s in node.body
        ):
            skips = any("skip_post_experts" in name for name in names_in(node.test))
            return Answer(not skips, code.where(node))
    return Answer(False, code.where(), "no all-reduce of its own")


@probe(
    "fused_expert_loader_knows_ep",
    "Checkpoints with all experts in one tensor are split by expert parallelism.",
)
def fused_expert_loader_knows_ep(source: Source) -> Answer:
    loader = source.function(FUSED_MOE_LAYER, "FusedMoE.weight_loader_fused")
    model = source.function(GPT_OSS, "GptOssForCausalLM._load_normal_weights")
    known = ("ep_rank", "ep_size", "num_local_experts", "_map_global_expert")
    for code in (loader, model):
        if any(word in name for name in names_in(code.node) for word in known):
            return Answer(True, code.where())
    return Answer(False, loader.where())


@probe(
    "shared_expert_tp1_overcounted",
    "A replicated shared expert is added on every rank before the exit's sum.",
)
def shared_expert_tp1_overcounted(source: Source) -> Answer:
    if at(source, source.need(DEEPSEEK), r"SGLANG_SHARED_EXPERT_TP1") is None:
        return Answer(False, None, "no such switch")
    code = source.function(DEEPSEEK, "DeepseekV2MoE.forward_normal")
    for node in ast.walk(code.node):
        if not isinstance(node, ast.If) or "_shared_expert_tp1" not in set(names_in(node.test)):
            continue
        adds = [
            s for s in node.body if isinstance(s, ast.AugAssign) and "shared_output" in set(names_in(s.value))
        ]
        if adds:
            guarded = any(
                word in name for name in names_in(node.test) for word in ("replicated_", "skip", "reduce")
            )
            scaled = "moe_ep_size" in set(names_in(adds[0].value))
            return Answer(not (guarded or scaled), code.where(node))
    raise Unknown("the shared expert is added elsewhere")


@probe(
    "moe_sum_ignores_determinism", "The sum over experts changes kernels at 32 tokens, deterministic or not."
)
def moe_sum_ignores_determinism(source: Source) -> Answer:
    rel = source.need(*FUSED_MOE)
    guarded = at(source, rel, r"<= 32 and not is_batch_invariant_mode_enabled\(\)")
    switch = at(source, rel, r"^ +if (?:tokens_in_chunk|num_tokens) <= 32:")
    if guarded is None and switch is None:
        raise Unknown("no switch at 32 tokens was found")
    return Answer(guarded is None, guarded or switch)


@probe(
    "eagle3_told_by_algorithm",
    "Whether a draft gets EAGLE3's hidden states follows from --speculative-algorithm.",
)
def eagle3_told_by_algorithm(source: Source) -> Answer:
    for rel in EAGLE3_FILES:
        if where := at(source, rel, r"^ +if (?:self\.)?spec_algorithm\.is_eagle3\(\)"):
            return Answer(True, where)
    raise Unknown("where EAGLE3's hidden states are chosen was not found")


@probe("tbo_refuses_enforced_fusion", "Two-batch overlap with enforced shared-experts fusion is refused.")
def tbo_refuses_enforced_fusion(source: Source) -> Answer:
    where = at(
        source, source.need(SERVER_ARGS), r"enable_two_batch_overlap and self\.enforce_shared_experts_fusion"
    )
    return Answer(where is not None, where)


@probe("tbo_pads_request_ids", "Two-batch overlap pads request ids, without which fused shared experts hang.")
def tbo_pads_request_ids(source: Source) -> Answer:
    rel = source.need("sglang/srt/batch_overlap/two_batch_overlap.py")
    where = at(source, rel, r'key == "rids" and len\(old_value\) != num_seqs')
    return Answer(where is not None, where or at(source, rel, r'^ +"rids",'))


@probe("draft_follows_target_runner", "A draft's MoE layers take the target's runner unless told otherwise.")
def draft_follows_target_runner(source: Source) -> Answer:
    own = r"(?:self|view|server_args)\.moe_runner_backend"
    for rel in (
        "sglang/srt/arg_groups/overrides.py",
        "sglang/srt/arg_groups/speculative_hook.py",
        SERVER_ARGS,
    ):
        for pattern in (
            rf"\.speculative_moe_runner_backend = {own}$",
            rf'return \{{"speculative_moe_runner_backend": (?:{own}|default)\}}',
        ):
            if where := at(source, rel, pattern):
                return Answer(True, where)
    avoids = at(source, SERVER_ARGS, r"if self\.speculative_moe_runner_backend is None:")
    return Answer(False if avoids else None, avoids)


@probe(
    "moe_tp_is_floor", "MoE TP is the quotient TP // EP // MoE-DP, and nothing asks for a remainder first."
)
def moe_tp_is_floor(source: Source) -> Answer:
    for rel in (RUNTIME_CONTEXT, PARALLEL_STATE):  # from 0.5.20; before
        if where := at(source, rel, r"(?:tp_size|model_parallel_size) // moe_ep_size"):
            return Answer(True, where)
    raise Unknown("MoE TP is computed elsewhere")

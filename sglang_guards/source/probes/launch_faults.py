"""Probes of the reported combinations of parallelism, speculative decoding and determinism."""

from __future__ import annotations

import ast
import re

from sglang_guards.source.probes.moe_faults import at
from sglang_guards.source.syntax.shape import guards, names_in, plain, resolved_names, upright
from sglang_guards.source.tree import Answer, Source, Unknown, decided, probe

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
RUNTIME_CONTEXT = "sglang/srt/runtime_context.py"
PARALLEL_STATE = "sglang/srt/distributed/parallel_state.py"


@probe(
    "mixed_chunk_spec_assertion",
    "The check of mixed chunk with speculation says the opposite of what it means.",
)
def mixed_chunk_spec_assertion(source: Source) -> Answer:
    words = r"enable_mixed_chunk is required for speculative decoding"
    yes = at(source, SERVER_ARGS, words) or at(source, VALIDATION, words)
    return decided(yes, at(source, VALIDATION, r"enable_mixed_chunk is not supported with"))


@probe(
    "reduce_scatterv_sums",
    "Under DP attention with EP the layer's exit sums the ranks' outputs (reduce_scatterv).",
)
def reduce_scatterv_sums(source: Source) -> Answer:
    rule = source.maybe(MOE_UTILS, "should_use_dp_reduce_scatterv")
    if rule is not None:
        return Answer(True, rule.where())
    code = source.function(COMMUNICATOR, "CommunicateSummableTensorPairFn._scatter_hidden_states")
    if any("reduce_scatterv" in (source.text(rel) or "") for rel in (MOE_UTILS, COMMUNICATOR)):
        raise Unknown("when reduce_scatterv is used is not known")
    if "dp_scatter" not in names_in(code.node):
        raise Unknown("how the exit gives back the tokens is not known")
    return Answer(False, code.where(), "no reduce_scatterv in this tree")


@probe(
    "reduce_scatterv_needs_full_dp", "The reduce_scatterv is used only where every rank is its own DP rank."
)
def reduce_scatterv_needs_full_dp(source: Source) -> Answer:
    rule = source.function(MOE_UTILS, "should_use_dp_reduce_scatterv")
    returned = [n.value for n in ast.walk(rule.node) if isinstance(n, ast.Return)]
    if (
        len(returned) != 1
        or not isinstance(returned[0], ast.BoolOp)
        or not isinstance(returned[0].op, ast.And)
    ):
        raise Unknown("should_use_dp_reduce_scatterv has another shape")
    compared = [n for n in returned[0].values if isinstance(n, ast.Compare)]
    for node in compared:
        if {"tp_size", "attn_dp_size"} <= names_in(node):
            return Answer(True, rule.where(node))
    if any("tp" in name.split("_") for name in names_in(returned[0])) or len(compared) < 2:
        raise Unknown("what reduce_scatterv asks of TP is not known")
    return Answer(False, rule.where())


@probe(
    "gpt_oss_sums_twice", "gpt-oss all-reduces its experts' output although the layer's exit sums it again."
)
def gpt_oss_sums_twice(source: Source) -> Answer:
    exit_sums = source.ask("reduce_scatterv_sums")
    if exit_sums.value is not True:
        return Answer(exit_sums.value, exit_sums.where, "whether the exit sums")
    code = source.function(GPT_OSS, "GptOssSparseMoeBlock.forward_normal")
    for node in ast.walk(code.node):
        if isinstance(node, ast.If) and any(
            "tensor_model_parallel_all_reduce" in names_in(s) for s in node.body
        ):
            upright(node.test, "tp_size")
            deciding = resolved_names(code.node, node.test)
            if any("skip_post_experts" in name for name in deciding):
                return Answer(False, code.where(node))
            known = {"self", "tp_size", "should_allreduce_fusion", "fuse_mlp_allreduce", "get_forward"}
            if guards(code.node, node) or not deciding <= known:
                raise Unknown("when gpt-oss all-reduces is not known")
            return Answer(True, code.where(node))
    plain(code.node)
    boundary = source.ask("fusion_layer_boundary").value
    if not boundary or "all_reduce" in ast.unparse(code.node) or "experts" not in names_in(code.node):
        raise Unknown("gpt-oss all-reduces elsewhere")
    return Answer(False, code.where(), "the layer boundary sums")


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
        plain(code.node)
    if not {"SHARD_ID_TO_SHARDED_DIM"} & names_in(loader.node) or "weight_loader" not in names_in(model.node):
        raise Unknown("how a tensor of all experts is split is not known")
    return Answer(False, loader.where())


@probe(
    "shared_expert_tp1_overcounted",
    "A replicated shared expert is added on every rank before the exit's sum.",
)
def shared_expert_tp1_overcounted(source: Source) -> Answer:
    code = source.function(DEEPSEEK, "DeepseekV2MoE.forward_normal")
    text = (source.text(DEEPSEEK) or "").lower()
    if "shared_expert_tp1" not in text:
        plain_enough = "_forward_shared_experts" in names_in(code.node)
        return decided(None, code.where() if plain_enough else None, "no such switch")
    for node in ast.walk(code.node):
        if not isinstance(node, ast.If) or "_shared_expert_tp1" not in names_in(node.test):
            continue
        adds = [s for s in node.body if isinstance(s, ast.AugAssign) and "shared_output" in names_in(s.value)]
        if adds:
            upright(node.test, "_shared_expert_tp1")
            asked = names_in(node.test) - {"self", "_shared_expert_tp1", "shared_output"}
            guarded = any(word in name for name in asked for word in ("replicated_", "skip", "reduce"))
            if (asked and not guarded) or guards(code.node, node):
                raise Unknown("when the shared expert is added is not known")
            scaled = "moe_ep_size" in names_in(adds[0].value)
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
    checks = ((SERVER_ARGS, "ServerArgs._check_two_batch_overlap"), (VALIDATION, "check_two_batch_overlap"))
    own = [code for rel, name in checks if (code := source.maybe(rel, name))]
    code = own[0] if own else source.function(SERVER_ARGS, "ServerArgs.check_server_args")
    tests = [
        n
        for n in ast.walk(code.node)
        if isinstance(n, ast.If) and "enable_two_batch_overlap" in names_in(n.test)
    ]
    refuses = [n for n in tests if "enforce_shared_experts_fusion" in names_in(n.test)]
    if refuses and any(isinstance(s, ast.Raise) for s in refuses[0].body):
        return Answer(True, code.where(refuses[0]))
    if "enforce_shared_experts_fusion" in names_in(code.node):
        raise Unknown("what is asked of shared-experts fusion is not known")
    others = [n for n in tests if "moe_a2a_backend" in names_in(n.test)]
    for other in others:
        upright(other.test, "enable_two_batch_overlap")
    plain(code.node)
    return decided(None, code.where(others[0]) if others else None)


@probe("tbo_pads_request_ids", "Two-batch overlap pads request ids, without which fused shared experts hang.")
def tbo_pads_request_ids(source: Source) -> Answer:
    rel = source.need("sglang/srt/batch_overlap/two_batch_overlap.py")
    text = source.text(rel) or ""
    yes = at(source, rel, r"^ +elif key == .rids. and len\(old_value\) != num_seqs:")
    named = len(re.findall(r"[\"']rids[\"']", text))
    batch = source.function(rel, "TboForwardBatchPreparer.filter_batch")
    return decided(yes, batch.where() if named <= 1 and yes is None else None)


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


@probe("moe_tp_is_floor", "MoE TP is the quotient TP // EP // MoE-DP.")
def moe_tp_is_floor(source: Source) -> Answer:
    for rel in (RUNTIME_CONTEXT, PARALLEL_STATE):  # from 0.5.20; before
        if where := at(source, rel, r"(?:tp_size|model_parallel_size) // moe_ep_size"):
            return Answer(True, where)
    raise Unknown("MoE TP is computed elsewhere")

"""Edits that change what SGLang does: the answer about it must change, or become unknown."""

from __future__ import annotations

import re

import pytest

from tests.contract.tables import source
from tests.mutation.overlay import Edited

MOE = "sglang/srt/layers/moe"
FUSED_MOE = f"{MOE}/moe_runner/triton_utils/fused_moe.py"
KERNELS = "sglang/kernels/ops/moe/fused_moe_triton_kernels.py"
FP8 = "sglang/srt/layers/quantization/fp8.py"
COMM = "sglang/srt/layers/flashinfer_comm_fusion.py"
OVERRIDES = "sglang/srt/arg_groups/overrides.py"

#: (probe, release, file, pattern, replacement): one behaviour taken out or put in.
CHANGES = (
    ("gate_checks_top_k", "0.5.23", FUSED_MOE, r"        and \(topk > 2\)\n", ""),
    ("gate_checks_defer_sum", "0.5.23", FUSED_MOE, r"        and \(not defer_sum\)\n", ""),
    ("gate_checks_no_combine", "0.5.23", FUSED_MOE, r"        and \(not no_combine\)\n", ""),
    (
        "gate_checks_experts_filtered",
        "0.5.23",
        FUSED_MOE,
        r"        and \(topk > 2\)\n",
        "        and (topk > 2)\n        and not filter_expert\n",
    ),
    (
        "zero_store_guarded",
        "0.5.23",
        KERNELS,
        r"or FUSE_ADD_TO_OUTPUT or FUSE_SUM_ALL_REDUCE\)",
        "or FUSE_ADD_TO_OUTPUT)",
    ),
    (
        "fused_add_relaxed",
        "0.5.23",
        KERNELS,
        r"tl\.atomic_add\(c_ptrs, accumulator, mask=c_mask\)",
        'tl.atomic_add(c_ptrs, accumulator, mask=c_mask, sem="relaxed")',
    ),
    ("fused_add_found", "0.5.23", KERNELS, r"tl\.atomic_add\(c_ptrs", "tl.store(c_ptrs"),
    ("fusion_passes_group", "0.5.23", COMM, r'create_kw\["group"\] = device_group', "pass"),
    ("fusion_checks_nvlink_clique", "0.5.23", COMM, r"is_one_nvlink_clique\(", "all_ranks_alive("),
    (
        "fusion_auto_checks_dp_attention",
        "0.5.15",
        OVERRIDES,
        r"\n +and not \S*(?:enable_dp_attention|attn_dp_enabled_of\(\w+\))",
        "",
    ),
    (
        "layer_runs_quant_method",
        "0.5.23",
        f"{MOE}/fused_moe_triton/layer.py",
        r"self\.quant_method\.apply\(\n            layer=self,",
        "self.offload.apply(\n            layer=self,",
    ),
    (
        "fp8_aiter_layout_for_any_runner",
        "0.5.23",
        FP8,
        r"if _use_aiter and runner_is_aiter:",
        "if _use_aiter:",
    ),
    (
        "fp8_cutlass_falls_back_to_triton",
        "0.5.23",
        FP8,
        r"MoeRunnerBackend\.TRITON",
        "MoeRunnerBackend.MARLIN",
    ),
    (
        "expert_block_padded_by_aiter",
        "0.5.23",
        FP8,
        r"if not \(_use_aiter and padding_size == block_n == block_k\):",
        "if block_quant:",
    ),
    (
        "reduce_scatterv_needs_full_dp",
        "0.5.23",
        f"{MOE}/utils.py",
        r"        and get_parallel\(\)\.tp_size == get_parallel\(\)\.attn_dp_size\n",
        "",
    ),
    (
        "virtual_experts_lose_up_half",
        "0.5.23",
        "sglang/srt/lora/lora_moe_runners.py",
        r" +a_output_slices=2 if is_gated else 1,\n",
        "",
    ),
    (
        "tbo_pads_request_ids",
        "0.5.23",
        "sglang/srt/batch_overlap/two_batch_overlap.py",
        r'elif key == "rids" and len',
        'elif key == "bids" and len',
    ),
    (
        "gpt_oss_sums_twice",
        "0.5.15",
        "sglang/srt/models/gpt_oss.py",
        r"if self\.tp_size > 1 and not should_allreduce_fusion:",
        "if self.tp_size > 1 and not should_skip_post_experts_all_reduce():",
    ),
    (
        "schedule_policy_needs_radix_cache",
        "0.5.23",
        "sglang/srt/managers/schedule_policy.py",
        r"return CacheAgnosticPolicy\.FCFS",
        "return policy",
    ),
    (
        "launcher_calls_validator",
        "0.5.15",
        "sglang/srt/entrypoints/engine.py",
        r" +server_args\.check_server_args\(\)\n",
        "",
    ),
)


@pytest.mark.parametrize(("probe", "release", "rel", "pattern", "new"), CHANGES, ids=[c[0] for c in CHANGES])
def test_the_answer_changes_or_is_unknown(probe: str, release: str, rel: str, pattern: str, new: str) -> None:
    base = source(release)
    before = base.ask(probe).value
    assert before is not None
    text, count = re.subn(pattern, lambda _: new, base.text(rel) or "")
    assert count, "the edit found nothing to change"
    assert Edited(base, {rel: text}).ask(probe).value is not before

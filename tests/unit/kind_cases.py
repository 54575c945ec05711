"""Cases of the kinds of faults that fresh reports showed: placement, overlap, stages, attention, scales, typed flags."""

from __future__ import annotations

from typing import Any

from tests.unit.hazard_cases import Case, Near

_GLM: dict[str, Any] = {
    "kv_lora_rank": 512, "index_topk": 2048, "index_topk_freq": 4, "index_skip_topk_offset": 3,
    "index_share_for_mtp_iteration": True, "routed_scaling_factor": 2.5,
}  # fmt: skip
_FREE = {
    "args.attention_backend": "fa3",
    "args.prefill_attention_backend": None,
    "args.decode_attention_backend": None,
}
_EPLB = {
    "args.enable_eplb": True, "args.init_expert_location": "trivial", "args.ep_size": 4, "args.tp_size": 4,
    "args.ep_num_redundant_experts": 0, "args.ep_dispatch_algorithm": "static",
}  # fmt: skip
_TBO = {"args.enable_two_batch_overlap": True}
_SBO = {
    "args.enable_single_batch_overlap": True, "args.ep_size": 8, "model.num_shared_experts": 1,
    "model.architecture": "DeepseekV3ForCausalLM",
}  # fmt: skip
_PP = {
    "args.pp_size": 2, "model.num_layers": 78, "model.config": _GLM, "model.architecture": "GlmMoeDsaForCausalLM",
}  # fmt: skip
_NVFP4 = {
    "model.quant_kind": "modelopt_fp4", "model.quant": "modelopt_fp4", "model.config": _GLM,
    "model.architecture": "GlmMoeDsaForCausalLM",
}  # fmt: skip
_SHARED = {
    "model.quant_kind": "auto_round", "model.quant": "auto-round", "model.num_shared_experts": 1, "model.num_layers": 2,
    "model.quant_config": {"extra_config": {"model.layers.1.mlp.shared_experts.down_proj": {"bits": 16}}},
    "build.target.fused_shared_experts": 1,
}  # fmt: skip
_SPEC = {
    "args.speculative_algorithm": "EAGLE",
    "args.speculative_num_steps": 3,
    "args.speculative_attention_mode": "prefill",
}
_DECODE = {
    **_SPEC, "args.disaggregation_mode": "decode", "draft_model.config": _GLM, "draft_model.exists": True,
}  # fmt: skip
_HYBRID = {"model.architecture": "Qwen3_5MoeForConditionalGeneration", "gpu.sm": 103, **_FREE}

KINDS: tuple[Case, ...] = (
    Case(
        "PAR108", "0.5.19", _EPLB, given=("enable_eplb",),
        near=(
            Near("nothing moves", {"args.enable_eplb": False}),
            Near("an all-to-all backend", {"args.moe_a2a_backend": "deepep"}),
            Near("one rank", {"args.ep_size": 1}),
            Near("a forward that asks", {"model.architecture": "DeepseekV3ForCausalLM"}),
            Near("the router asks", release="0.5.23"),
            Near("a dense model", {"model.is_moe": False}),
        ),
    ),
    Case(
        "PAR108", "0.5.15", {**_EPLB, "args.enable_eplb": False, "args.init_expert_location": "/placement.pt"},
        given=("init_expert_location",), name="initial placement",
        near=(Near("trivial", {"args.init_expert_location": "trivial"}),),
    ),
    Case(
        "PAR109", "0.5.15",
        {**_EPLB, "args.ep_num_redundant_experts": 8, "model.architecture": "DeepseekV3ForCausalLM"},
        given=("ep_num_redundant_experts",),
        near=(
            Near("no replicas", {"args.ep_num_redundant_experts": 0}),
            Near("all ranks agree", release="0.5.17"),
            Near("an all-to-all backend", {"args.moe_a2a_backend": "deepep"}),
            Near("no dispatch", {"args.ep_dispatch_algorithm": None}),
        ),
    ),
    Case(
        "PAR110", "0.5.20", {**_TBO, "model.architecture": "Glm5NextForConditionalGeneration"},
        near=(
            Near("off", {"args.enable_two_batch_overlap": False}),
            Near("a strategy", {"model.architecture": "DeepseekV3ForCausalLM"}),
            Near("the model never splits", {"model.architecture": "Qwen3NextForCausalLM"}),
        ),
    ),
    Case(
        "PAR110", "0.5.15", {**_TBO, "model.architecture": "MiniMaxM2ForCausalLM"}, name="minimax",
        near=(Near("MiMo", {"model.architecture": "MiMoV2FlashForCausalLM"}),),
    ),
    Case(
        "PAR111", "0.5.23", _SBO,
        near=(
            Near("off", {"args.enable_single_batch_overlap": False}),
            Near("DeepEP", {"args.moe_a2a_backend": "deepep"}),
            Near("not in place", {"args.moe_runner_backend": "deep_gemm"}),
            Near("no shared experts", {"model.num_shared_experts": 0}),
            Near("no hook", {"model.architecture": "Glm4MoeForCausalLM"}),
        ),
    ),
    Case(
        "PAR112", "0.5.13", _PP,
        near=(
            Near("one stage", {"args.pp_size": 1}),
            Near("handed over", release="0.5.14"),
            Near("each layer has its own", {"model.config": {**_GLM, "index_topk_freq": 1}}),
            Near("the stage begins with a layer of its own", {"model.num_layers": 36}),
        ),
    ),
    Case(
        "PAR113", "0.5.15", {"args.moe_a2a_backend": "deepep", "gpu.name": "NVIDIA L40S", "gpu.count": 8, "gpu.sm": 89},
        severity="warning",
        near=(
            Near("NVLink", {"gpu.name": "NVIDIA H200"}),
            Near("no all-to-all", {"args.moe_a2a_backend": "none"}),
            Near("one GPU a node", {"gpu.count": 1}),
        ),
    ),
    Case(
        "RUN110", "0.5.15", _NVFP4,
        near=(
            Near("left to Marlin", release="0.5.17"),
            Near("no factor", {"model.config": {**_GLM, "routed_scaling_factor": 1.0}}),
            Near("FP4 kernels", {"gpu.sm": 100}),
            Near("FP8", {"model.quant_kind": "fp8"}),
            Near("a router that never scales", {"model.architecture": "Qwen3MoeForCausalLM"}),
        ),
    ),
    Case(
        "RUN111", "0.5.12", {"args.moe_runner_backend": "deep_gemm"}, given=("moe_runner_backend",),
        near=(
            Near("repaired", release="0.5.13"),
            Near("DeepEP", {"args.moe_a2a_backend": "deepep"}),
            Near("Triton", {"args.moe_runner_backend": "triton"}),
        ),
    ),
    Case(
        "QNT102", "0.5.23", {"args.ep_size": 2, "model.quant_block": None, "model.quant_config": None},
        given=("ep_size", "quantization"),
        near=(
            Near("block FP8", {"model.quant_block": [128, 128]}),
            Near("no EP", {"args.ep_size": 1}),
            Near("static activations", {"model.quant_config": {"activation_scheme": "static"}}),
            Near("another runner", {"args.moe_runner_backend": "cutlass"}),
            Near("an all-to-all backend", {"args.moe_a2a_backend": "deepep"}),
            Near("bf16", {"model.quant_kind": "unquantized"}),
        ),
    ),
    Case(
        "QNT103", "0.5.12", _SHARED, severity="warning",
        near=(
            Near("not fused", {"build.target.fused_shared_experts": 0}),
            Near("both quantized", {"model.quant_config": {"extra_config": {}}}),
            Near("none", {"model.num_shared_experts": 0}),
        ),
    ),
    Case(
        "QNT103", "0.5.18",
        {
            **_SHARED, "model.quant_kind": "modelopt_fp4", "args.moe_runner_backend": "marlin", "model.quant_config": {"a": 1},
            "model.quant_ignored": ["model.layers.1.mlp.shared_experts*"],
        },
        name="nvfp4 on marlin",
        near=(Near("quantized when loaded", {"args.moe_runner_backend": "flashinfer_trtllm_routed"}),),
    ),
    Case(
        "ATT101", "0.5.15", {**_FREE, "gpu.sm": 120}, given=("attention_backend",),
        near=(
            Near("Hopper", {"gpu.sm": 90}),
            Near("triton", {"args.attention_backend": "triton"}),
            Near("not typed", given=()),
        ),
    ),
    Case(
        "ATT101", "0.5.23",
        {**_FREE, "args.attention_backend": "trtllm_mha", "gpu.sm": 100, "model.config": _GLM,
         "model.architecture": "DeepseekV3ForCausalLM"},
        given=("attention_backend",), name="mla",
        near=(Near("not latent", {"model.config": {}, "model.architecture": "Qwen3MoeForCausalLM"}),),
    ),
    Case(
        "ATT102", "0.5.18", {**_HYBRID, "args.attention_backend": "flashinfer"}, given=("attention_backend",),
        near=(
            Near("allowed since", release="0.5.21"),
            Near("triton", {"args.attention_backend": "triton"}),
            Near("Hopper", {"gpu.sm": 90}),
            Near("no hybrid", {"model.architecture": "Qwen3MoeForCausalLM"}),
        ),
    ),
    Case(
        "ATT103", "0.5.19", {**_SPEC, **_FREE, "args.attention_backend": "flex_attention"}, given=("attention_backend",),
        near=(
            Near("no draft", {"args.speculative_algorithm": None}),
            Near("a backend with a draft", {"args.attention_backend": "triton"}),
            Near("another for the draft", {"args.speculative_draft_attention_backend": "triton"}),
        ),
    ),
    Case(
        "ATT104", "0.5.19", {**_FREE, "args.attention_backend": "torch_native", "args.speculative_algorithm": "NGRAM"},
        given=("attention_backend",),
        near=(
            Near("no speculation", {"args.speculative_algorithm": None}),
            Near("triton", {"args.attention_backend": "triton"}),
        ),
    ),
    Case(
        "ATT105", "0.5.12", {**_FREE, "args.attention_backend": "nsa", "gpu.sm": 120},
        near=(
            Near("a path of its own", release="0.5.17"),
            Near("Hopper", {"gpu.sm": 90}),
            Near("other attention", {"args.attention_backend": "triton"}),
        ),
    ),
    Case(
        "SPC107", "0.5.15", _DECODE, given=("speculative_algorithm",),
        near=(
            Near("handed over", release="0.5.16"),
            Near("no seed yet", release="0.5.14"),
            Near("a prefill node", {"args.disaggregation_mode": "prefill"}),
            Near("no sharing", {"draft_model.config": {}}),
        ),
    ),
    Case(
        "FLG202", "0.5.12", {"typed.speculative_adaptive": True, "args.speculative_adaptive": False}, severity="warning",
        given=("speculative_adaptive",),
        near=(
            Near("kept", {"args.speculative_adaptive": True}),
            Near("not typed", {"typed.speculative_adaptive": False}),
        ),
    ),
    Case(
        "FLG203", "0.5.23",
        {"without.page_size": {"attention_backend": "trtllm_mha"}, "args.attention_backend": "triton", "args.page_size": 16},
        severity="warning", given=("page_size",),
        near=(
            Near("the same", {"without.page_size": {"page_size": 1}}),
            Near("faster with it", {"without.page_size": {"attention_backend": "triton"}, "args.attention_backend": "fa3"}),
        ),
    ),
)  # fmt: skip

#: What removing a flag of these means.
KIND_DEFAULTS: dict[str, Any] = {
    "enable_eplb": False, "init_expert_location": "trivial", "ep_num_redundant_experts": 0, "ep_size": 1, "pp_size": 1,
    "attention_backend": "triton", "enable_single_batch_overlap": False, "speculative_adaptive": False, "page_size": 1,
    "disable_shared_experts_fusion": False,
}  # fmt: skip

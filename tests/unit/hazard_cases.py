"""For each rule of RUN, QNT, SPC, PAR, DET and FLG: a launch that fires it, and near misses that do not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: A block-FP8 MoE model on eight H200, nothing asked for.
BASE: Mapping[str, Any] = {
    "args.tp_size": 8, "args.ep_size": 1, "args.dp_size": 1, "args.moe_dp_size": 1, "args.nnodes": 1,
    "args.moe_runner_backend": "auto", "args.moe_a2a_backend": "none", "args.quantization": None,
    "args.enable_dp_attention": False, "args.moe_dense_tp_size": None, "args.disable_shared_experts_fusion": False,
    "args.enable_fused_moe_sum_all_reduce": False, "args.speculative_algorithm": None,
    "args.speculative_moe_runner_backend": None, "args.speculative_moe_a2a_backend": None,
    "args.enable_mixed_chunk": False, "args.max_running_requests": None, "args.deepep_mode": "auto",
    "gpu.platform": "cuda", "gpu.sm": 90, "lora.enabled": False, "draft_model.exists": False,
    "model.architecture": "Qwen3MoeForCausalLM", "model.is_moe": True, "model.config": {}, "model.quant": "fp8",
    "model.quant_kind": "fp8", "model.quant_block": [128, 128], "model.quant_ignored": [],
    "model.moe_intermediate_size": 1536, "model.shared_expert_intermediate_size": None,
    "model.num_shared_experts": 0, "model.intermediate_size": 12288, "model.first_k_dense": 0,
    "model.num_experts": 128, "model.top_k": 8, "model.num_layers": 48,
    "args.dwdp_size": 1, "args.enforce_shared_experts_fusion": False, "args.elastic_ep_backend": None,
    "args.encoder_only": False, "args.use_ray": False, "args.base_gpu_id": 0, "args.gpu_id_step": 1,
}  # fmt: skip

#: What removing a flag means.
DEFAULTS: Mapping[str, Any] = {
    "moe_runner_backend": "auto", "moe_a2a_backend": "none", "enable_fused_moe_sum_all_reduce": False,
    "lora_use_virtual_experts": False, "enable_mixed_chunk": False, "speculative_algorithm": None,
    "enforce_shared_experts_fusion": False, "enable_two_batch_overlap": False, "moe_dense_tp_size": None,
    "num_continuous_decode_steps": 1, "triton_attention_reduce_in_fp32": False,
}  # fmt: skip


@dataclass(frozen=True)
class Near:
    """One change that must silence the rule."""

    what: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    release: str | None = None
    env: Mapping[str, str] | None = None
    given: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Case:
    """A launch that fires `rule` on `release` with `severity`."""

    rule: str
    release: str
    facts: Mapping[str, Any]
    near: tuple[Near, ...]
    severity: str = "error"
    env: Mapping[str, str] = field(default_factory=dict)
    given: tuple[str, ...] = ()
    name: str = ""


_LORA = {"lora.enabled": True, "lora.target_modules": ["down_proj", "gate_up_proj"]}
_UNREAD = {"lora.enabled": True}
_EAGLE = {"args.speculative_algorithm": "EAGLE", "draft_model.exists": True, "draft_model.built_in": True}
_GLM_FP4 = {
    "model.architecture": "GlmMoeDsaForCausalLM", "model.quant": "modelopt_fp4", "model.quant_kind": "modelopt_fp4",
    "model.quant_block": None, "gpu.sm": 100, "args.moe_runner_backend": "flashinfer_trtllm",
    **{f"draft_model.{k}": v for k, v in {
        "is_moe": True, "quant_kind": "modelopt_fp4", "num_layers": 78, "architecture": "GlmMoeDsaForCausalLM",
        "num_experts": 256, "top_k": 8, "quant_ignored": ["model.layers.78*"],
    }.items()},
}  # fmt: skip
_DP_EP = {"args.enable_dp_attention": True, "args.dp_size": 8, "args.ep_size": 8}
_TBO = {"args.enable_two_batch_overlap": True}

CASES: tuple[Case, ...] = (
    Case(
        "QNT101", "0.5.15", {"model.moe_intermediate_size": 2560}, name="routed",
        near=(
            Near("EP 2 leaves whole blocks", {"args.ep_size": 2}),
            Near("per-channel FP8 has no blocks", {"model.quant_block": None}),
            Near("the experts are left unquantized", {"model.quant_ignored": ["model.layers.0.mlp.experts"]}),
            Near("TRT-LLM pads to 128", {"args.moe_runner_backend": "flashinfer_trtllm"}),
            Near("AITER pads", {"gpu.platform": "hip"}, env={"SGLANG_USE_AITER": "1"}),
        ),
    ),
    Case(
        "QNT101", "0.5.15", name="shared",
        facts={
            "args.tp_size": 4, "args.ep_size": 4, "model.architecture": "Step3p5ForCausalLM",
            "model.moe_intermediate_size": 1280, "model.shared_expert_intermediate_size": 1280,
        },
        near=(
            Near("TP 2", {"args.tp_size": 2, "args.ep_size": 2}),
            Near("an architecture that is not known to split it", {"model.architecture": "SomeForCausalLM"}),
            Near("left unquantized", {"model.quant_ignored": ["re:.*share_expert.*"]}),
            Near("replicated under DeepEP", {"args.moe_a2a_backend": "deepep"}),
        ),
    ),
    Case(
        "QNT101", "0.5.13", name="shared-next",
        facts={
            "args.ep_size": 8, "model.architecture": "Qwen3NextForCausalLM", "model.moe_intermediate_size": 512,
            "model.shared_expert_intermediate_size": 512,
        },
        near=(
            Near("fused into the routed experts", release="0.5.14"),
            Near("TP 4", {"args.tp_size": 4, "args.ep_size": 4}),
        ),
    ),
    Case(
        "QNT101", "0.5.15", name="dense",
        facts={
            "args.tp_size": 32, "args.ep_size": 32, "model.architecture": "DeepseekV3ForCausalLM",
            "model.moe_intermediate_size": 2048, "model.intermediate_size": 18432, "model.first_k_dense": 3,
        },
        near=(
            Near("no dense layers", {"model.first_k_dense": 0}),
            Near("replicated dense layers", {"args.moe_dense_tp_size": 1}),
            Near("TP 16", {"args.tp_size": 16, "args.ep_size": 16}),
        ),
    ),
    Case(
        "RUN101", "0.5.15", {"args.moe_runner_backend": "flashinfer_cutlass"},
        near=(
            Near("falls back to Triton", release="0.5.20"),
            Near("NVFP4 experts", {"model.quant_kind": "modelopt_fp4"}),
            Near("another runner", {"args.moe_runner_backend": "triton"}),
        ),
    ),
    Case(
        "RUN102", "0.5.15", {"model.quant_kind": "quark_mxfp4", "args.moe_runner_backend": "triton"},
        near=(
            Near("AITER", {"args.moe_runner_backend": "aiter"}),
            Near("the option is not read", release="0.5.10"),
            Near("Quark FP8", {"model.quant_kind": "quark_fp8"}),
        ),
    ),
    Case(
        "RUN103", "0.5.15", {"gpu.platform": "hip", "args.moe_runner_backend": "triton"},
        env={"SGLANG_USE_AITER": "1"},
        near=(
            Near("without the switch", env={}),
            Near("the shuffle looks at the runner", release="0.5.23"),
            Near("AITER ran anyway", release="0.5.10"),
            Near("CUDA", {"gpu.platform": "cuda"}),
            Near("bf16", {"model.quant_kind": "unquantized"}),
        ),
    ),
    Case(
        "RUN104", "0.5.18", {"model.quant": "mxfp8", "model.quant_kind": "mxfp8", "gpu.sm": 120},
        near=(Near("SM100", {"gpu.sm": 100}), Near("ROCm", {"gpu.platform": "hip"})),
    ),
    Case(
        "RUN105", "0.5.16", {"model.quant": "w4afp8", "model.quant_kind": "w4afp8", "args.moe_a2a_backend": "deepep"},
        near=(
            Near("before the refactoring", release="0.5.15"),
            Near("repaired", release="0.5.18"),
            Near("low-latency kernels only", {"args.deepep_mode": "low_latency"}),
            Near("without DeepEP", {"args.moe_a2a_backend": "none"}),
        ),
    ),
    Case(
        "RUN106", "0.5.12", severity="warning", given=("moe_runner_backend",),
        facts={
            "model.config": {"expert_dtype": "fp4"}, "args.moe_runner_backend": "flashinfer_trtllm", "gpu.sm": 100,
            "model.architecture": "DeepseekV4ForCausalLM",
        },
        near=(
            Near("FP8 experts", {"model.config": {}}),
            Near("converted to FP8", env={"SGLANG_DSV4_FP4_EXPERTS": "0"}),
            Near("picked by SGLang", given=()),
            Near(
                "a hybrid NVFP4 checkpoint",
                {"model.config": {"expert_dtype": "fp4", "quantization_config": {"moe_quant_algo": "NVFP4"}}},
            ),
            Near("the MXFP4 runner", {"args.moe_runner_backend": "flashinfer_mxfp4"}),
        ),
    ),
    Case(
        "RUN107", "0.5.12", severity="warning",
        facts={
            "model.architecture": "MiniMaxM2ForCausalLM", "model.quant_kind": "modelopt_fp4", "gpu.sm": 100,
            "args.moe_runner_backend": "flashinfer_trtllm",
        },
        near=(
            Near("routed outside the kernel", {"args.moe_runner_backend": "flashinfer_trtllm_routed"}),
            Near("another model", {"model.architecture": "Qwen3MoeForCausalLM"}),
            Near("FP8", {"model.quant_kind": "fp8"}),
        ),
    ),
    Case(
        "RUN108", "0.5.15", {"args.moe_runner_backend": "flashinfer_trtllm", "gpu.sm": 120}, severity="warning",
        given=("moe_runner_backend",),
        near=(Near("B200", {"gpu.sm": 100}), Near("B300", {"gpu.sm": 103}), Near("dense", {"model.is_moe": False})),
    ),
    Case(
        "RUN201", "0.5.15", {**_LORA, "model.quant": "mxfp4", "args.moe_runner_backend": "triton"}, name="known",
        near=(
            Near("adapters off the experts", {"lora.target_modules": ["qkv_proj"]}),
            Near("bf16", {"model.quant": None}),
            Near("auto", {"args.moe_runner_backend": "auto"}),
        ),
    ),
    Case(
        "RUN201", "0.5.15", {**_UNREAD, "model.quant": "mxfp4", "args.moe_runner_backend": "triton"},
        severity="warning", name="unread", near=(Near("no LoRA", {"lora.enabled": False}),),
    ),
    Case(
        "RUN202", "0.5.10", {**_LORA, "args.ep_size": 4},
        near=(
            Near("knows EP", release="0.5.11"),
            Near("no EP", {"args.ep_size": 1}),
            Near("attention adapters", {"lora.target_modules": ["qkv_proj", "o_proj"]}),
        ),
    ),
    Case(
        "RUN203", "0.5.15", {**_LORA, "args.lora_use_virtual_experts": True},
        near=(
            Near("repaired", release="0.5.23"),
            Near("plain path", {"args.lora_use_virtual_experts": False}),
            Near("ungated experts", {"model.architecture": "NemotronHForCausalLM"}),
        ),
    ),
    Case(
        "RUN204", "0.5.15", severity="warning",
        facts={
            "model.architecture": "GptOssForCausalLM", "model.quant": None, "model.quant_kind": "unquantized",
            "args.ep_size": 8,
        },
        near=(
            Near("MXFP4 is split by rank", {"model.quant": "mxfp4", "model.quant_kind": "mxfp4"}),
            Near("no EP", {"args.ep_size": 1}),
        ),
    ),
    Case(
        "RUN301", "0.5.15", severity="warning", given=("moe_runner_backend",),
        facts={
            "args.moe_runner_backend": "triton", "args.enable_fused_moe_sum_all_reduce": True, "gpu.sm": 100,
        },
        near=(
            Near("the flag is off", {"args.enable_fused_moe_sum_all_reduce": False}),
            Near("H200", {"gpu.sm": 90}),
            Near("Triton for LoRA", {"lora.enabled": True}),
        ),
    ),
    Case(
        "SPC101", "0.5.15", {"args.enable_mixed_chunk": True, "args.speculative_algorithm": "MINE"},
        near=(
            Near("a check that says what it means", release="0.5.19"),
            Near("no speculation", {"args.speculative_algorithm": None}),
        ),
    ),
    Case(
        "SPC102", "0.5.15", {**_EAGLE, "args.speculative_algorithm": "EAGLE3", "model.config": {"hidden_size": 896}},
        near=(
            Near("a draft of its own", {"draft_model.built_in": False}),
            Near("the checkpoint brings MTP layers", {"model.config": {"num_nextn_predict_layers": 1}}),
            Near("nested MTP layers", {"model.config": {"text_config": {"mtp_num_hidden_layers": 1}}}),
        ),
    ),
    Case(
        "SPC103", "0.5.15", severity="warning", facts={**_GLM_FP4, **_EAGLE},
        near=(
            Near("Triton for the draft", {"args.speculative_moe_runner_backend": "triton"}),
            Near("FP8 target", {"model.quant_kind": "fp8"}),
            Near("Hopper", {"gpu.sm": 90}),
            Near("another family", {"model.architecture": "Qwen3_5MoeForConditionalGeneration"}),
        ),
    ),
    Case(
        "SPC104", "0.5.22", severity="warning",
        facts={
            **_GLM_FP4, **_EAGLE, "args.moe_a2a_backend": "flashinfer_megamoe",
            "args.moe_runner_backend": "flashinfer_megamoe", "args.speculative_moe_a2a_backend": None,
        },
        near=(
            Near("no speculation", {"args.speculative_algorithm": None}),
            Near("a draft dispatch of its own", {"args.speculative_moe_a2a_backend": "none"}),
        ),
    ),
    Case(
        "SPC105", "0.5.15", severity="warning",
        facts={
            "args.speculative_algorithm": "EAGLE", "draft_model.exists": True, "draft_model.built_in": False,
            "draft_model.architecture": "LlamaForCausalLMEagle3",
        },
        near=(
            Near("EAGLE3", {"args.speculative_algorithm": "EAGLE3"}),
            Near("an EAGLE draft", {"draft_model.architecture": "LlamaForCausalLMEagle"}),
        ),
    ),
    Case(
        "SPC106", "0.5.15", severity="warning",
        facts={
            **_EAGLE, "model.architecture": "GlmMoeDsaForCausalLM", "args.tp_size": 16, "args.dp_size": 2,
            "args.enable_dp_attention": True,
        },
        near=(
            Near("dp equals tp", {"args.dp_size": 16}),
            Near("no DP attention", {"args.enable_dp_attention": False}),
            Near("outside the reported releases", release="0.5.16"),
            Near("no speculation", {"args.speculative_algorithm": None}),
        ),
    ),
    Case(
        "SPC201", "0.5.15", {"args.speculative_algorithm": "EAGLE"}, severity="warning",
        given=("enable_mixed_chunk",), near=(Near("no speculation", {"args.speculative_algorithm": None}),),
    ),
    Case(
        "PAR101", "0.5.15", {**_DP_EP, "model.architecture": "GptOssForCausalLM"},
        near=(
            Near("repaired", release="0.5.20"),
            Near("before the second sum", release="0.5.10"),
            Near("no EP", {"args.ep_size": 1}),
            Near("EP 2", {"args.ep_size": 2}),
            Near("all-to-all", {"args.moe_a2a_backend": "deepep"}),
        ),
    ),
    Case(
        "PAR101", "0.5.15", name="partial-dp",
        facts={
            "model.architecture": "GptOssForCausalLM", "args.enable_dp_attention": True, "args.dp_size": 4,
            "args.ep_size": 4,
        },
        near=(Near("needs dp = tp from here on", release="0.5.17"),),
    ),
    Case(
        "PAR102", "0.5.15", env={"SGLANG_SHARED_EXPERT_TP1": "1"},
        facts={**_DP_EP, "model.architecture": "DeepseekV3ForCausalLM", "model.num_shared_experts": 1},
        near=(
            Near("switch off", env={}),
            Near("added on one rank", release="0.5.21"),
            Near("no DP attention", {"args.enable_dp_attention": False}),
            Near("no EP", {"args.ep_size": 1}),
            Near("no shared expert", {"model.num_shared_experts": 0}),
        ),
    ),
    Case(
        "PAR103", "0.5.11", {**_TBO, "args.enforce_shared_experts_fusion": True}, severity="warning",
        near=(
            Near("refused by SGLang", release="0.5.12"),
            Near("repaired", release="0.5.14"),
            Near("not enforced", {"args.enforce_shared_experts_fusion": False}),
        ),
    ),
    Case(
        "PAR104", "0.5.15", severity="warning",
        facts={
            **_TBO, "args.moe_runner_backend": "flashinfer_mxfp4", "args.enable_dp_attention": True,
            "args.dp_size": 8,
        },
        near=(
            Near("SM100 has another kernel", {"gpu.sm": 100}),
            Near("no TBO", {"args.enable_two_batch_overlap": False}),
        ),
    ),
    Case(
        "PAR105", "0.5.15", severity="warning",
        facts={**_UNREAD, "args.moe_dense_tp_size": 1, "model.first_k_dense": 3},
        near=(
            Near("no dense layers", {"model.first_k_dense": 0}),
            Near("attention adapters", {"lora.target_modules": ["qkv_proj"]}),
            Near("no LoRA", {"lora.enabled": False}),
        ),
    ),
    Case(
        "RUN109", "0.5.12", severity="warning",
        facts={
            "model.quant_kind": "unquantized", "gpu.sm": 100, "target.runner": "flashinfer_trtllm",
            "args.disable_piecewise_cuda_graph": False, "args.cuda_graph_max_bs": 1024,
        },
        near=(
            Near("a usual size", {"args.cuda_graph_max_bs": 512}),
            Near("FP8", {"model.quant_kind": "fp8"}),
            Near("Triton", {"target.runner": "triton"}),
            Near("switched off in resolution", {"args.disable_piecewise_cuda_graph": True}),
        ),
    ),
    Case(
        "DET101", "0.5.12", {"args.enable_deterministic_inference": True}, severity="warning",
        near=(
            Near("looks at the mode", release="0.5.14"),
            Near("the batch stays below", {"args.max_running_requests": 16}),
            Near("not asked for", {"args.enable_deterministic_inference": False}),
            Near("dense", {"model.is_moe": False}),
        ),
    ),
    Case(
        "DET102", "0.5.15", severity="warning",
        facts={"args.enable_deterministic_inference": True, "model.architecture": "GptOssForCausalLM"},
        near=(
            Near("one GPU", {"args.tp_size": 1}),
            Near("covered", {"model.architecture": "Qwen3MoeForCausalLM"}),
        ),
    ),
    Case(
        "PAR106", "0.5.15", {"args.tp_size": 4, "args.ep_size": 3}, severity="error", name="a remainder",
        near=(
            Near("divides", {"args.ep_size": 2}),
            Near("all of it", {"args.ep_size": 4}),
            Near("grows later", {"args.elastic_ep_backend": "mooncake"}),
            Near("an encoder has no EP", {"args.encoder_only": True}),
        ),
    ),
    Case(
        "PAR106", "0.5.23", {"args.tp_size": 2, "args.ep_size": 4}, severity="error", name="more than TP",
        near=(Near("no EP", {"args.ep_size": 1}),),
    ),
    Case(
        "PAR106", "0.5.15", {"args.tp_size": 4, "args.ep_size": 0}, severity="error", name="none",
        near=(Near("no EP", {"args.ep_size": 1}),),
    ),
    Case(
        "PAR107", "0.5.15", {"gpu.count": 4, "args.tp_size": 2, "args.pp_size": 2, "args.gpu_id_step": 3},
        severity="error", name="steps",
        near=(
            Near("the step spreads TP only", {"args.tp_size": 1, "args.pp_size": 4}),
            Near("fits", {"gpu.count": 6}),
            Near("an encoder has no stages", {"args.encoder_only": True}),
        ),
    ),
    Case(
        "PAR107", "0.5.15", {"gpu.count": 4, "args.pp_size": 1}, severity="error",
        near=(
            Near("as many as there are", {"gpu.count": 8}),
            Near("two nodes", {"args.nnodes": 2}),
            Near("Ray places the ranks", {"args.use_ray": True}),
            Near("no GPUs that are numbered", {"gpu.platform": "cpu"}),
        ),
    ),
    Case(
        "PAR107", "0.5.15", {"gpu.count": 8, "args.pp_size": 1, "args.dp_size": 2}, severity="error", name="copies",
        near=(Near("DP attention shares the ranks", {"args.enable_dp_attention": True}),),
    ),
    Case(
        "FLG201", "0.5.15", {"args.num_continuous_decode_steps": 4}, severity="warning",
        given=("num_continuous_decode_steps",),
        near=(Near("not set", {"args.num_continuous_decode_steps": 1}, given=()),),
    ),
    Case(
        "FLG201", "0.5.15", {"args.triton_attention_reduce_in_fp32": True}, severity="warning", name="fp32",
        given=("triton_attention_reduce_in_fp32",), near=(Near("read by double sparsity", release="0.5.10"),),
    ),
)  # fmt: skip

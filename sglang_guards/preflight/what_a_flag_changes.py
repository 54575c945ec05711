"""What else a typed flag changed: the launch resolved once more without it.

A flag may flip a default that nobody typed: a page size that moves attention to another backend. SGLang says so in a
line of its log at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sglang_guards.launch.fact import Fact

#: Flags whose removal makes it another launch, or that say nothing about how it runs.
_NEVER = frozenset(
    {
        "model_path", "tokenizer_path", "revision", "trust_remote_code", "json_model_override_args", "load_format",
        "tp_size", "pp_size", "dp_size", "ep_size", "moe_dp_size", "attn_dp_size", "attn_cp_size", "nnodes",
        "node_rank", "dist_init_addr", "enable_dp_attention", "quantization", "dtype", "device", "config",
        "speculative_algorithm", "speculative_draft_model_path", "speculative_num_steps", "speculative_eagle_topk",
        "speculative_num_draft_tokens", "disaggregation_mode", "enable_lora", "lora_paths", "max_lora_rank",
        "lora_target_modules", "host", "port", "served_model_name", "chat_template", "reasoning_parser",
        "tool_call_parser", "api_key", "log_level", "enable_metrics", "random_seed", "stream_interval",
        "watchdog_timeout", "dist_timeout", "download_dir", "kt_weight_path", "enable_cache_report",
        "moe_a2a_backend", "enable_deterministic_inference",
    }
)  # fmt: skip
#: Fields that say how the server runs; the rest follows from them or from memory, and moves with every flag.
_TELLING = (
    "attention_backend", "prefill_attention_backend", "decode_attention_backend", "moe_runner_backend",
    "speculative_moe_runner_backend", "speculative_draft_attention_backend", "fp8_gemm_runner_backend",
    "fp4_gemm_runner_backend", "sampling_backend", "kv_cache_dtype", "page_size", "disable_overlap_schedule",
    "disable_cuda_graph", "disable_piecewise_cuda_graph", "disable_radix_cache", "enable_mixed_chunk",
    "enable_flashinfer_allreduce_fusion", "flashinfer_allreduce_fusion_backend", "disable_shared_experts_fusion",
    "disable_custom_all_reduce", "enable_dp_lm_head", "speculative_adaptive", "enable_hierarchical_cache",
)  # fmt: skip
#: Resolutions at most: each costs tens of milliseconds.
_MOST = 8

#: Attention backends that run anywhere, and slower than those that SGLang picks for a GPU.
GENERAL = frozenset({"triton", "torch_native", "flex_attention"})

#: Resolve the launch without one flag: the facts of its args, None where it does not resolve.
Resolve = Callable[[str], Mapping[str, Any] | None]


def may_have_cost(typed: Iterable[str], args: Mapping[str, Any]) -> bool:
    """Whether attention runs on a general backend that nobody typed: a flag may be the reason."""
    given = set(typed)
    return any(args.get(name) in GENERAL and name not in given for name in _TELLING[:3])


def candidates(typed: Iterable[str]) -> list[str]:
    """The typed flags that are worth a second look, in order."""
    return [name for name in typed if name not in _NEVER][:_MOST]


def changes(typed: Iterable[str], args: Mapping[str, Any], without: Resolve) -> dict[str, Fact]:
    """Facts ``without.<flag>``: for every flag that changes other fields, their values in its absence."""
    found: dict[str, Fact] = {}
    given = set(typed)
    for name in candidates(typed):
        other = without(name)
        if other is None:
            continue
        differs = {
            field: other[field]
            for field in _TELLING
            if field in args and field in other and field not in given and other[field] != args[field]
        }
        if differs:
            found[f"without.{name}"] = Fact(differs, "resolved")
    return found


def typed_values(given: Mapping[str, Any]) -> dict[str, Fact]:
    """Facts ``typed.<field>``: what the operator gave, to be held against what resolution made of it."""
    return {f"typed.{name}": Fact(value, "given") for name, value in given.items()}

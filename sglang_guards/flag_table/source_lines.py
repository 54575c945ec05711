"""Where an installed SGLang decides the flags of the verdict table: the first line that matches, release after release.

Each topic lists places from the newest shape to the oldest. They only point; whether a flag acts follows from
resolution and from probes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from sglang_guards.launch.facts import Launch
from sglang_guards.source.tree import Source

_ARGS = "sglang/srt/server_args.py"
_GROUPS = "sglang/srt/arg_groups/"
_FIELDS = "sglang/srt/arg_groups/fields"
_SPEC = _GROUPS + "speculative_hook.py"

#: Topic -> (file, pattern of the line) in the order in which they are tried.
LINES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "mixed_chunk": (("sglang/srt/managers/scheduler.py", r"^ +self\.is_mixed_chunk = \("),),
    "mixed_chunk_spec": (
        (_SPEC, r"^ +if cfg\.enable_mixed_chunk and not algo\.supports_mixed_chunk\(\):"),
        (_SPEC, r"^ +server_args\.enable_mixed_chunk = False"),
        (_ARGS, r"^ {16}self\.enable_mixed_chunk = False"),
    ),
    "mixed_chunk_algorithms": (("sglang/srt/speculative/spec_info.py", r"def supports_mixed_chunk\("),),
    "conservativeness": (
        (
            "sglang/srt/managers/scheduler_components/new_token_ratio_tracker.py",
            r"\* .*schedule_conservativeness",
        ),
        ("sglang/srt/managers/scheduler.py", r"\* self\.server_args\.schedule_conservativeness"),
    ),
    "conservativeness_dp": (
        (_GROUPS + "parallel_hook.py", r"schedule_conservativeness=.*\* 0\.3"),
        (_ARGS, r"schedule_conservativeness \* 0\.3"),
    ),
    "memory": (
        (_GROUPS + "memory_hook.py", r"^ +mem_fraction_static="),
        (_ARGS, r"^ +self\.mem_fraction_static = \("),
    ),
    "graph_batch": (
        (_GROUPS + "memory_hook.py", r"\.max_bs = 8$"),
        (_ARGS, r"(?:\.|cuda_graph_)max_bs = 8$"),
    ),
    "graph_prefill": (
        (_GROUPS + "cuda_graph_hook.py", r"^def apply_cuda_graph_compatibility"),
        (
            _ARGS,
            r"^    def _(?:disable_tc_piecewise_cudagraph_if_incompatible|handle_piecewise_cuda_graph)\(",
        ),
    ),
    "dp_attention": (("sglang/srt/layers/dp_attention.py", r"^def initialize_dp_attention"),),
    "dp_attention_off": (
        (_GROUPS + "parallel_hook.py", r"^def handle_deprecated_dp_attention"),
        (_GROUPS + "overrides.py", r'"enable_dp_attention": False'),
        (_ARGS, r"^ +self\.enable_dp_attention = False"),
    ),
    "a2a": ((_GROUPS + "moe_hook.py", r"^def handle_a2a_moe"), (_ARGS, r"^    def _handle_a2a_moe")),
    "deterministic": (
        (_GROUPS + "attention_hook.py", r"^def handle_deterministic_inference"),
        (_ARGS, r"^    def _handle_deterministic_inference"),
    ),
    "dense_tp": (
        (
            "sglang/srt/layers/layer_boundary/layout.py",
            r"^def (?:enable_moe_dense_fully_dp|is_dense_ffn_fully_dp)\(",
        ),
        ("sglang/srt/layers/communicator.py", r"^def enable_moe_dense_fully_dp\("),
    ),
    "shared_experts": (
        (_GROUPS + "overrides.py", r'return \{"disable_shared_experts_fusion": True\}'),
        (_ARGS, r"^ +self\.disable_shared_experts_fusion = True"),
    ),
    "runner_backend": (
        (_GROUPS + "overrides.py", r"^def _moe_runner_backend_quant_constraints"),
        (_GROUPS + "moe_hook.py", r"^def handle_moe_kernel_config"),
        (_ARGS, r"^    def _handle_moe_kernel_config"),
    ),
    "draft_runner_backend": (
        (_GROUPS + "overrides.py", r"^    if view\.speculative_moe_runner_backend is None:"),
        (_SPEC, r"^    if server_args\.speculative_moe_runner_backend is None:"),
        (_ARGS, r"^        if self\.speculative_moe_runner_backend is None:"),
    ),
    "triton_attention": (("sglang/srt/layers/attention/triton_backend.py", r"^class TritonAttnBackend"),),
    "speculative": (
        (_SPEC, r"^def _?handle_speculative_decoding"),
        (_GROUPS + "speculative_hook.py", r"NEXTN"),
        (_ARGS, r'speculative_algorithm == "NEXTN"'),
    ),
}

#: Server arg -> the lines that act on it, for rows whose own line is only a declaration. `{value}` is the arg's value.
READERS: Mapping[str, tuple[tuple[str, str], ...]] = {
    **dict.fromkeys(
        ("attention_backend", "prefill_attention_backend", "decode_attention_backend"),
        (
            (
                "sglang/srt/layers/attention/attention_registry.py",
                r'^@register_attention_backend\("{value}"\)',
            ),
        ),
    ),
    "speculative_draft_attention_backend": (
        ("sglang/srt/speculative/draft_worker_common.py", r"\.speculative_draft_attention_backend$"),
        ("sglang/srt/speculative/draft_utils.py", r"= \S+\.speculative_draft_attention_backend$"),
    ),
    "enable_two_batch_overlap": (("sglang/srt/layers/moe/utils.py", r"= \S+\.enable_two_batch_overlap$"),),
    "enable_single_batch_overlap": (
        ("sglang/srt/layers/moe/utils.py", r"= \S+\.enable_single_batch_overlap$"),
    ),
    "enable_eplb": (("sglang/srt/model_executor/model_runner.py", r"^ +if \S+\.enable_eplb and"),),
    "disaggregation_mode": (
        ("sglang/srt/managers/scheduler.py", r"^ +self\.disaggregation_mode = DisaggregationMode\("),
    ),
    "kv_cache_dtype": (
        ("sglang/srt/model_executor/model_runner.py", r"kv_cache_dtype == \"auto\""),
        ("sglang/srt/mem_cache/kv_cache_dtype.py", r"kv_cache_dtype == \"auto\""),
    ),
    "page_size": (("sglang/srt/model_executor/model_runner.py", r"self\.page_size = \S+\.page_size$"),),
    "quantization": (("sglang/srt/configs/model_config.py", r"^    def _verify_quantization\("),),
}

#: How the experts are quantized -> the class that builds their runner.
_METHODS: Mapping[str, tuple[str, str]] = {
    "unquantized": ("sglang/srt/layers/quantization/unquant.py", "UnquantizedFusedMoEMethod"),
    "fp8": ("sglang/srt/layers/quantization/fp8.py", "Fp8MoEMethod"),
    "mxfp8": ("sglang/srt/layers/quantization/fp8.py", "Fp8MoEMethod"),
    "mxfp4": ("sglang/srt/layers/quantization/mxfp4.py", "Mxfp4MoEMethod"),
    "modelopt_fp4": ("sglang/srt/layers/quantization/modelopt_quant.py", "ModelOptNvFp4FusedMoEMethod"),
    "modelopt_fp8": ("sglang/srt/layers/quantization/modelopt_quant.py", "ModelOptFp8MoEMethod"),
    "w8a8_fp8": ("sglang/srt/layers/quantization/w8a8_fp8.py", "W8A8FP8MoEMethod"),
    "w8a8_int8": ("sglang/srt/layers/quantization/w8a8_int8.py", "W8A8Int8MoEMethod"),
    "blockwise_int8": ("sglang/srt/layers/quantization/blockwise_int8.py", "BlockInt8MoEMethod"),
    "w4afp8": ("sglang/srt/layers/quantization/w4afp8.py", "W4AFp8MoEMethod"),
}


def deciding(launch: Launch, *topics: str) -> str:
    """`file:line` for the first topic that this tree has, as `Launch.where` shows it; empty where none is found."""
    source = launch.source
    for topic in topics:
        for rel, pattern in LINES[topic] if source is not None else ():
            if source is not None and source.text(rel) is not None and (number := source.line(rel, pattern)):
                return short(f"{rel}:{number}")
    return ""


def declared(launch: Launch, field: str) -> str:
    """Where a server arg is declared."""
    source = launch.source
    if source is None:
        return ""
    for rel in (_ARGS, *source.files(_FIELDS, "*.py")):
        if number := source.line(rel, rf"^    {field}\s*:"):
            return short(f"{rel}:{number}")
    return ""


def acted_on(launch: Launch, field: str) -> bool:
    """Whether a line was seen that acts on a server arg; always for an arg whose row cites such a line itself."""
    if field not in READERS:
        return True
    value = re.escape(str(launch.get(f"args.{field}")))
    source = launch.source
    return source is not None and any(
        source.text(rel) is not None and source.line(rel, pattern.replace("{value}", value))
        for rel, pattern in READERS[field]
    )


def runner_line(launch: Launch, kind: object) -> str:
    """Where the method of these experts builds its runner; the backend's resolution where that is not known."""
    where = _runner_in(launch.source, str(kind)) if launch.source is not None else ""
    return short(where) or deciding(launch, "runner_backend")


def _runner_in(source: Source, kind: str) -> str:
    if kind not in _METHODS:
        return ""
    rel, name = _METHODS[kind]
    if source.text(rel) is None or not (head := source.line(rel, rf"^class {name}\b")):
        return ""
    lines = (source.text(rel) or "").split("\n")
    number = next(
        (n for n in range(head, len(lines)) if lines[n].startswith("    def create_moe_runner(")), head - 1
    )
    return f"{rel}:{number + 1}"


def model_line(launch: Launch) -> str:
    """Where the model's own file looks at --disable-shared-experts-fusion; empty where it is not found."""
    source = launch.source
    kind = str(launch.get("model.model_type") or "").removesuffix("_text")
    for name in (kind, kind.removesuffix("_moe"), "deepseek_v2" if _deepseek(launch) else ""):
        rel = f"sglang/srt/models/{name}.py"
        if source is not None and name and (number := source.line(rel, r"disable_shared_experts_fusion")):
            return short(f"{rel}:{number}")
    return ""


def _deepseek(launch: Launch) -> bool:
    """Whether the config speaks DeepSeek's dialect, which its own file and its descendants' read."""
    return "n_routed_experts" in str(launch.get("model.config") or "")


def short(where: str) -> str:
    """A place without the leading package folders."""
    return where.removeprefix("sglang/srt/").removeprefix("sglang/")

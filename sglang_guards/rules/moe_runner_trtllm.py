"""RUN1xx: experts on the TRT-LLM runner of FlashInfer."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_guards.launch.facts import Launch
from sglang_guards.report.model import Evidence, Finding, Fix, Severity
from sglang_guards.rules import Rule, rule
from sglang_guards.rules.reports_common import TRTLLM, is_moe, issue, line, major, typed

_AUTO = Fix("remove --moe-runner-backend: SGLang then picks a runner that fits", {"moe_runner_backend": None})


def _backend(launch: Launch) -> str:
    return str(launch.get("args.moe_runner_backend") or "auto")


def _named(launch: Launch) -> bool:
    """Whether the operator asked for the runner; what SGLang picks by itself it has a reason for."""
    return launch.given("moe_runner_backend") and _backend(launch) in TRTLLM


@rule(
    "RUN106",
    "fp4-experts-on-trtllm",
    Severity.WARNING,
    summary="FP4 experts of an FP8 checkpoint do not fit the flashinfer_trtllm runner",
    needs=("args.moe_runner_backend", "model.config", "model.quant", "source.fp4_experts_unknown_to_trtllm"),
    evidence=(issue(26324),),
    applies=lambda launch: is_moe(launch) and _named(launch),
)
def fp4_experts(rule: Rule, launch: Launch) -> Iterator[Finding]:
    """DeepSeek-V4-style FP4 experts with flashinfer_trtllm.

    ## What it checks
    The checkpoint is FP8 with `expert_dtype` fp4, the operator names flashinfer_trtllm, and the installed FP8 method
    has no branch for that pair (it has for flashinfer_mxfp4 and marlin).

    ## Why it matters
    The experts are then handed to the FP8 path of the runner.

    ## When it hurts
    Reported for 0.5.12 on B200: an assertion in the first forward. To tell: the server does not get past CUDA-graph
    capture.

    ## Fix
    --moe-runner-backend flashinfer_mxfp4.
    """
    config = launch["model.config"]
    hybrid = "NVFP4" in str((config.get("quantization_config") or {}).get("moe_quant_algo", "")).upper()
    if config.get("expert_dtype") != "fp4" or hybrid or env_off(launch) or launch["model.quant"] != "fp8":
        return
    if launch["source.fp4_experts_unknown_to_trtllm"]:
        yield rule.finding(
            flags=typed(launch, "moe_runner_backend"),
            cause=f"the checkpoint's experts are FP4, for which the FP8 method has no {_backend(launch)} branch "
            f"({launch.where('source.fp4_experts_unknown_to_trtllm')})",
            impact="an assertion in the first forward; to tell, watch whether CUDA-graph capture ends",
            fix=Fix("use --moe-runner-backend flashinfer_mxfp4", {"moe_runner_backend": "flashinfer_mxfp4"}),
            evidence=(line(launch, "fp4_experts_unknown_to_trtllm"),),
        )


def env_off(launch: Launch) -> bool:
    """Whether the FP4 experts are switched off by hand (a checkpoint converted to FP8)."""
    return launch.env.get("SGLANG_DSV4_FP4_EXPERTS", "").strip().lower() in ("0", "false")


@rule(
    "RUN107",
    "minimax-m2-nvfp4-on-trtllm",
    Severity.WARNING,
    summary="flashinfer_trtllm does not know how MiniMax-M2 routes",
    needs=(
        "args.moe_runner_backend",
        "model.architecture",
        "model.quant_kind",
        "source.minimax_m2_names_routing",
    ),
    evidence=(issue(26324), issue(32229)),
    applies=lambda launch: _backend(launch) == "flashinfer_trtllm",
)
def minimax_routing(rule: Rule, launch: Launch) -> Iterator[Finding]:
    """MiniMax-M2 NVFP4 with the plain flashinfer_trtllm runner.

    ## What it checks
    The model is MiniMax-M2 with NVFP4 experts, the runner is flashinfer_trtllm (which routes inside its kernel), and
    the installed model does not name its routing method.

    ## Why it matters
    The kernel then routes with its default, which is not MiniMax's sigmoid scoring with a bias.

    ## When it hurts
    Reported for 0.5.12: corrupted text from the first token, at any TP; later releases stop at start-up instead. To
    tell: ask for one sentence and read it.

    ## Fix
    --moe-runner-backend flashinfer_trtllm_routed (routes outside the kernel) or flashinfer_cutlass.
    """
    fp4 = launch["model.quant_kind"] in ("modelopt_fp4", "nvfp4", "ct_nvfp4")
    if not fp4 or not str(launch["model.architecture"]).startswith("MiniMaxM2"):
        return
    if launch["source.minimax_m2_names_routing"] is False:
        yield rule.finding(
            flags=typed(launch, "moe_runner_backend"),
            cause=f"the model names no routing method ({launch.where('source.minimax_m2_names_routing')}), so the "
            "kernel routes with its default",
            impact="corrupted text from the first token, or a refusal at start-up in later releases; to tell, read one "
            "answer",
            fix=Fix(
                "use --moe-runner-backend flashinfer_trtllm_routed",
                {"moe_runner_backend": "flashinfer_trtllm_routed"},
            ),
            evidence=(line(launch, "minimax_m2_names_routing"),),
        )


@rule(
    "RUN108",
    "trtllm-runner-off-sm100",
    Severity.WARNING,
    summary="the TRT-LLM MoE runner has no kernel on this GPU",
    needs=("args.moe_runner_backend", "gpu.platform", "gpu.sm"),
    evidence=(Evidence("source", "arg_groups/overrides.py: «trtllm-gen MoE kernels are SM100-only»"),),
    applies=lambda launch: is_moe(launch) and _named(launch),
)
def trtllm_gpu(rule: Rule, launch: Launch) -> Iterator[Finding]:
    """flashinfer_trtllm on a GPU outside the SM10x family.

    ## What it checks
    The operator names flashinfer_trtllm or flashinfer_trtllm_routed and the GPU is not SM10x.

    ## Why it matters
    FlashInfer ships these kernels for SM10x; SGLang itself avoids them on SM120 for NVFP4 and takes the choice of
    the operator for the rest.

    ## When it hurts
    In the first forward, after the weights have loaded. To tell: the worker's log names a missing kernel or
    architecture.

    ## Fix
    Remove --moe-runner-backend.
    """
    if launch["gpu.platform"] == "cuda" and major(launch) != 10 and launch.get("model.quant") != "mxfp8":
        yield rule.finding(
            flags=typed(launch, "moe_runner_backend"),
            cause=f"this launch targets SM{launch['gpu.sm']}; the TRT-LLM MoE kernels are built for SM10x",
            impact="the first forward fails, after the weights have loaded; the log names the missing kernel",
            fix=_AUTO,
        )

"""RUN1xx: experts on the TRT-LLM runner of FlashInfer."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_guards.launch.facts import Launch
from sglang_guards.launch.moe_runner import NVFP4_KINDS
from sglang_guards.report.model import Severity
from sglang_guards.rules import Violation, read_in, rule, set_to, sglang_issue
from sglang_guards.rules.reports_common import AUTO_RUNNER, TRTLLM, is_moe, major, runner_backend


def _named(launch: Launch) -> bool:
    """Whether the operator named the runner; what SGLang picks by itself it has a reason for."""
    return launch.given("moe_runner_backend") and runner_backend(launch) in TRTLLM


def _left_to_layers(launch: Launch) -> bool:
    """Whether resolution left `auto` and the quantization method's own default is this runner, on any GPU."""
    return runner_backend(launch) == "auto" and launch.get("target.runner") in TRTLLM


@rule(
    "RUN106",
    "fp4-experts-on-trtllm",
    Severity.WARNING,
    summary="FP4 experts of an FP8 checkpoint do not fit the flashinfer_trtllm runner",
    source={"fp4_experts_unknown_to_trtllm": True},
    reports=[sglang_issue(26324)],
    applies=lambda launch: _named(launch) and is_moe(launch),
)
def fp4_experts(launch: Launch) -> Iterator[Violation]:
    """DeepSeek-V4-style FP4 experts with flashinfer_trtllm.

    ## What it checks
    The checkpoint is FP8 with `expert_dtype` fp4, the operator names flashinfer_trtllm, and the installed FP8 method
    has no branch for that pair (it has for flashinfer_mxfp4 and marlin).

    ## Why it matters
    The experts are then handed to the FP8 path of the runner.

    ## When it hurts
    Reported for 0.5.12 on B200: an assertion in the first forward. To confirm: the server does not get past CUDA-graph
    capture.

    ## Fix
    --moe-runner-backend flashinfer_mxfp4.
    """
    if launch["model.quant"] != "fp8" or fp4_experts_off(launch):
        return
    config = launch["model.config"]
    hybrid = "NVFP4" in str((config.get("quantization_config") or {}).get("moe_quant_algo", "")).upper()
    if config.get("expert_dtype") == "fp4" and not hybrid:
        yield Violation(
            flags=("moe_runner_backend",),
            cause=f"the checkpoint's experts are FP4, for which the FP8 method has no {runner_backend(launch)} branch",
            impact="an assertion fails in the first forward; to confirm, see whether CUDA graph capture finishes",
            fix=set_to("moe_runner_backend", "flashinfer_mxfp4"),
        )


def fp4_experts_off(launch: Launch) -> bool:
    """Whether the FP4 experts are switched off by hand (a checkpoint converted to FP8)."""
    return launch.env.get("SGLANG_DSV4_FP4_EXPERTS", "").strip().lower() in ("0", "false")


@rule(
    "RUN107",
    "minimax-m2-nvfp4-on-trtllm",
    Severity.WARNING,
    summary="flashinfer_trtllm does not know MiniMax-M2's routing method",
    source={"minimax_m2_names_routing": False},
    reports=[sglang_issue(26324), sglang_issue(32229)],
    applies=lambda launch: runner_backend(launch) == "flashinfer_trtllm",
)
def minimax_routing(launch: Launch) -> Iterator[Violation]:
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
    --moe-runner-backend flashinfer_cutlass, which routes outside the kernel. (flashinfer_trtllm_routed does too, but
    later releases build no runner for it with these experts.)
    """
    if launch["model.quant_kind"] not in NVFP4_KINDS:
        return
    if str(launch["model.architecture"]).startswith("MiniMaxM2"):
        yield Violation(
            flags=("moe_runner_backend",),
            cause="the model names no routing method, so the kernel routes with its default one",
            impact="corrupted text from the first token, or a refusal at start-up in later releases; to confirm, read "
            "one answer",
            fix=set_to("moe_runner_backend", "flashinfer_cutlass"),
        )


@rule(
    "RUN108",
    "trtllm-runner-off-sm100",
    Severity.WARNING,
    summary="the TRT-LLM MoE runner has no kernel on this GPU",
    reports=[read_in("arg_groups/overrides.py: trtllm-gen MoE kernels are SM100-only")],
    applies=lambda launch: (_named(launch) or _left_to_layers(launch)) and is_moe(launch),
)
def trtllm_gpu(launch: Launch) -> Iterator[Violation]:
    """flashinfer_trtllm on a GPU outside the SM10x family.

    ## What it checks
    The operator names flashinfer_trtllm or flashinfer_trtllm_routed and the GPU is not SM10x. An error where the
    experts are of a kind that runs there (FP8, NVFP4, MXFP4, bf16) and the GPU is older than SM100 or SM12x.

    ## Why it matters
    FlashInfer ships these kernels for SM10x; SGLang itself avoids them on SM120 for NVFP4 and takes the choice of
    the operator for the rest.

    ## When it hurts
    In the first forward, after the weights have loaded. To confirm: the worker's log names a missing kernel or
    architecture.

    ## Fix
    Remove --moe-runner-backend. Where it was not given, the quantization method itself falls back on this runner
    (NVFP4 on SM120 without --quantization): use --moe-runner-backend flashinfer_cutlass.
    """
    if launch["gpu.platform"] == "cuda" and major(launch) != 10 and launch["model.quant"] != "mxfp8":
        yield Violation(
            flags=("moe_runner_backend",),
            cause=f"the GPU is SM{launch['gpu.sm']}; the TRT-LLM MoE kernels are built for SM10x",
            impact="the first forward fails after the weights are loaded, and the log names the missing kernel",
            fix=AUTO_RUNNER if _named(launch) else set_to("moe_runner_backend", "flashinfer_cutlass"),
            severity=Severity.ERROR if _certain(launch) else None,
        )


def _certain(launch: Launch) -> bool:
    """Whether the experts surely run there, on a GPU for which FlashInfer ships none of these kernels."""
    return launch.get("target.runner") in TRTLLM and (int(launch["gpu.sm"]) < 100 or major(launch) == 12)


@rule(
    "RUN109",
    "trtllm-bf16-experts-in-piecewise-graph",
    Severity.WARNING,
    summary="bf16 TRT-LLM experts can crash while the piecewise prefill graph is captured",
    reports=[sglang_issue(27712)],
    applies=lambda launch: launch["args.disable_piecewise_cuda_graph"] is False and is_moe(launch),
)
def trtllm_piecewise(launch: Launch) -> Iterator[Violation]:
    """Unquantized experts on flashinfer_trtllm with the piecewise CUDA graph and a large batch.

    ## What it checks
    bf16 experts on TRT-LLM, an SM10x GPU, --cuda-graph-max-bs of 1024 or more as reported, and the piecewise graph
    still on after resolution (up to 0.5.12 SGLang switches it off for this runner).

    ## Why it matters
    The autotuner may pick a batched GEMM that reads out of bounds at that size.

    ## When it hurts
    At start-up, while the prefill graph is captured: an illegal memory access. To confirm: without piecewise
    it is gone.

    ## Fix
    --disable-piecewise-cuda-graph, or another runner.
    """
    size = launch["args.cuda_graph_max_bs"]
    if not isinstance(size, int) or size < 1024 or major(launch) != 10:
        return
    if launch["model.quant_kind"] == "unquantized" and launch["target.runner"] in TRTLLM:
        yield Violation(
            flags=("moe_runner_backend", "cuda_graph_max_bs"),
            cause=f"bf16 experts on {launch['target.runner']} with the piecewise graph on and batches up to {size}",
            impact="an illegal memory access while the prefill graph is captured, in a public report",
            fix=set_to("disable_piecewise_cuda_graph", True),
        )

"""RUN303: another runner is known to be faster for these experts on this GPU."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_guards.launch import measurements
from sglang_guards.launch.facts import Launch
from sglang_guards.report.model import Severity
from sglang_guards.rules import Violation, manual, rule
from sglang_guards.rules.reports_common import is_moe


@rule(
    "RUN303",
    "faster-runner-measured",
    Severity.INFO,
    summary="another MoE runner was measured to be faster in prefill",
    measured=[
        "one NVIDIA H200, SGLang 0.5.15: Qwen3-235B-A22B FP8 at TP 4, 16,384 tokens: deep_gemm ×1.31, cutlass ×1.13; "
        "at 64 tokens ×0.67 and ×0.90",
    ],
    applies=lambda launch: is_moe(launch) and launch.get("gpu.platform") == "cuda",
)
def faster(launch: Launch) -> Iterator[Violation]:
    """Triton experts where another runner was measured to be faster.

    ## What it checks
    The experts run on Triton, without expert parallelism, an all-to-all backend, LoRA or deterministic inference, and
    for exactly this GPU, SGLang and shape a measurement is known in which another runner is faster at 1,024 tokens and
    more: a profile that `sglang-guards bench` made on this machine, else the results that ship with this package
    (NVIDIA H200). Where nobody measured, the rule is silent and the flag table says so.

    ## Why it matters
    Which runner is best depends on the shape, the GPU and the batch: DeepGEMM and CUTLASS win with large batches on
    Hopper and lose with small ones.

    ## When it hurts
    Prefill takes longer than it must. A server that mostly decodes is better off as it is.

    ## Fix
    Measure the server with the named runner, on your traffic; on prefill instances of a disaggregated deployment first.
    """
    if launch["target.runner"] != "triton" or int(launch["args.ep_size"]) > 1 or launch["lora.enabled"]:
        return
    if launch["args.moe_a2a_backend"] not in (None, "none") or launch["args.enable_deterministic_inference"]:
        return
    if "fp8" in str(launch["model.quant_kind"]) and not launch["model.quant_block"]:
        return  # the measured FP8 shapes have scales of 128 × 128
    found = measurements.faster_runner(launch)
    if found is None:
        return
    yield Violation(
        flags=("moe_runner_backend",),
        cause=found.text,
        impact="prefill takes longer than it must, while decoding is faster on triton",
        fix=manual(f"measure the server with --moe-runner-backend {found.runner} on your own traffic"),
    )

"""RUN110, RUN111: sums over experts that count something twice, or leave something out."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_guards.launch.checkpoint import text_config
from sglang_guards.launch.facts import Launch
from sglang_guards.report.model import Severity
from sglang_guards.rules import Violation, ask, manual, rule, sglang_issue, unset

_NO_A2A = frozenset({None, "", "none"})


@rule(
    "RUN110",
    "nvfp4-on-marlin-scaled-twice",
    Severity.ERROR,
    summary="NVFP4 experts on Marlin are multiplied by the routed scaling factor twice",
    source={
        ask("nvfp4_marlin_scales_twice"): True,
        ask("router_scales_when_asked", architecture="model.architecture"): True,
    },
    reports=(sglang_issue(29931),),
    applies=lambda launch: launch.get("model.quant_kind") == "modelopt_fp4" and launch["model.is_moe"],
)
def scaled_twice(launch: Launch) -> Iterator[Violation]:
    """An NVFP4 checkpoint on a GPU without FP4 kernels, whose config has a routed scaling factor.

    ## What it checks
    ModelOpt's NVFP4 experts run on Marlin (the default below SM100), the config's `routed_scaling_factor` is not 1,
    and in the installed source both the router and the Marlin runner multiply by it.

    ## Why it matters
    The experts' share of every layer is too large by that factor.

    ## When it hurts
    From the first token: garbage on the default launch, no flag needed and no error.

    ## Example
    `--model-path nvidia/GLM-5.2-NVFP4 --tp 4 --quantization modelopt_fp4` on H200, 0.5.14. It works on 0.5.17.

    ## Fix
    Use the FP8 checkpoint on this GPU, or a release in which the router leaves the factor to Marlin (0.5.17 does).
    """
    factor = text_config(launch["model.config"]).get("routed_scaling_factor")
    if not isinstance(factor, (int, float)) or factor == 1 or launch["target.runner"] != "marlin":
        return
    if launch["args.moe_a2a_backend"] not in _NO_A2A:
        return
    yield Violation(
        flags=tuple(name for name in ("quantization", "moe_runner_backend") if launch.given(name)),
        cause=f"NVFP4 experts run on Marlin here, and both the router and Marlin multiply by routed_scaling_factor = "
        f"{factor:g}",
        impact="from the first token the text is garbage, without an error",
        fix=manual("use the FP8 checkpoint on this GPU, or SGLang 0.5.17 or later"),
    )


@rule(
    "RUN111",
    "deep-gemm-drops-the-first-expert",
    Severity.ERROR,
    summary="DeepGEMM without an all-to-all backend leaves each rank's first expert out",
    source={"deep_gemm_combine_drops_expert_zero": True},
    reports=(sglang_issue(26473),),
    applies=lambda launch: launch.get("args.moe_runner_backend") == "deep_gemm" and launch["model.is_moe"],
)
def drops_first_expert(launch: Launch) -> Iterator[Violation]:
    """--moe-runner-backend deep_gemm with FP8 experts and no all-to-all backend.

    ## What it checks
    The runner is deep_gemm, no all-to-all backend is set, the experts are FP8, and the installed combine kernel adds
    experts with an id above zero only.

    ## Why it matters
    Expert 0 of every rank is computed and thrown away.

    ## When it hurts
    From the first token: lower accuracy, no error. To tell: an accuracy test against `--moe-runner-backend triton`.

    ## Example
    `--model-path Qwen/Qwen3-30B-A3B-FP8 --moe-runner-backend deep_gemm` on 0.5.12. It works without the flag, and on
    0.5.13.

    ## Fix
    Remove --moe-runner-backend: Triton runs these experts.
    """
    if launch["args.moe_a2a_backend"] not in _NO_A2A or launch["target.runner"] != "deep_gemm":
        return
    if launch["model.quant_kind"] != "fp8":
        return
    yield Violation(
        flags=("moe_runner_backend",),
        cause="the kernel that adds the experts' outputs skips local expert id 0",
        impact="from the first token the outputs lack one expert per rank, without an error",
        fix=unset("moe_runner_backend"),
    )

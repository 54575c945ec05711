"""RUN1xx: experts that the asked-for runner cannot run, or runs wrongly."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_guards.launch.facts import Launch
from sglang_guards.report.model import Evidence, Finding, Fix, Severity
from sglang_guards.rules import Rule, rule
from sglang_guards.rules.reports_common import env_on, is_moe, issue, line, major, typed

_AUTO = Fix("remove --moe-runner-backend: SGLang then picks a runner that fits", {"moe_runner_backend": None})


def _backend(launch: Launch) -> str:
    return str(launch.get("args.moe_runner_backend") or "auto")


@rule(
    "RUN101",
    "fp8-experts-on-flashinfer-cutlass",
    Severity.ERROR,
    summary="FP8 experts have no runner for flashinfer_cutlass",
    needs=("args.moe_runner_backend", "model.quant_kind", "source.fp8_cutlass_without_runner"),
    evidence=(issue(27951),),
    applies=lambda launch: is_moe(launch) and _backend(launch) == "flashinfer_cutlass",
)
def fp8_cutlass(rule: Rule, launch: Launch) -> Iterator[Finding]:
    """FP8 experts with --moe-runner-backend flashinfer_cutlass.

    ## What it checks
    The checkpoint's experts are FP8, the runner is flashinfer_cutlass, and the installed FP8 method builds no runner
    for it. Newer releases fall back to Triton instead, and the rule is silent.

    ## Why it matters
    The argument check lets it pass when --quantization is not spelled out, and the method then keeps no runner at all.

    ## When it hurts
    After the weights have loaded: the first forward, during CUDA-graph capture, dies with an AttributeError.

    ## Fix
    Leave the runner to SGLang, or name triton.
    """
    if launch["model.quant_kind"] == "fp8" and launch["source.fp8_cutlass_without_runner"]:
        yield rule.finding(
            flags=typed(launch, "moe_runner_backend"),
            cause=f"the FP8 expert method builds runners for Triton, DeepGEMM and TRT-LLM only "
            f"({launch.where('source.fp8_cutlass_without_runner')})",
            impact="after the weights have loaded, the first forward dies with an AttributeError",
            fix=_AUTO,
            evidence=(line(launch, "fp8_cutlass_without_runner"),),
        )


@rule(
    "RUN102",
    "quark-mxfp4-experts-without-aiter",
    Severity.ERROR,
    summary="Quark MXFP4 experts run on AITER only",
    needs=("args.moe_runner_backend", "model.quant_kind", "source.quark_mxfp4_needs_aiter"),
    evidence=(Evidence("report", "https://github.com/AMD-AGI/Hyperloom/issues/1036"),),
    applies=lambda launch: is_moe(launch) and _backend(launch) not in ("auto", "aiter"),
)
def quark_mxfp4(rule: Rule, launch: Launch) -> Iterator[Finding]:
    """Quark MXFP4 experts with a runner other than AITER.

    ## What it checks
    The checkpoint's experts are Quark MXFP4, --moe-runner-backend names another runner than aiter, and the installed
    scheme builds a runner for AITER only.

    ## Why it matters
    There is no other kernel for these weights; auto would have taken AITER.

    ## When it hurts
    In the first forward, or while the model loads where SGLang says so itself.

    ## Fix
    Remove --moe-runner-backend, or name aiter.
    """
    if launch["model.quant_kind"] == "quark_mxfp4" and launch["source.quark_mxfp4_needs_aiter"]:
        yield rule.finding(
            flags=typed(launch, "moe_runner_backend"),
            cause=f"the Quark MXFP4 scheme builds no runner for {_backend(launch)} "
            f"({launch.where('source.quark_mxfp4_needs_aiter')})",
            impact="the workers die at model load or in the first forward",
            fix=_AUTO,
            evidence=(line(launch, "quark_mxfp4_needs_aiter"),),
        )


@rule(
    "RUN103",
    "aiter-weights-read-by-triton",
    Severity.ERROR,
    summary="FP8 experts are laid out for AITER and read by Triton",
    needs=(
        "gpu.platform",
        "args.moe_runner_backend",
        "model.quant_kind",
        "model.quant_block",
        "source.fp8_aiter_layout_for_any_runner",
    ),
    evidence=(Evidence("report", "https://github.com/AMD-AGI/Hyperloom/pull/1459"),),
    applies=lambda launch: (
        is_moe(launch) and _backend(launch) == "triton" and env_on(launch, "SGLANG_USE_AITER")
    ),
)
def aiter_layout(rule: Rule, launch: Launch) -> Iterator[Finding]:
    """SGLANG_USE_AITER=1 together with --moe-runner-backend triton on ROCm.

    ## What it checks
    The switch is on, the experts are block-FP8, the runner is Triton, and the installed method shuffles the weights
    for AITER without looking at the runner.

    ## Why it matters
    Triton reads the shuffled weights as if they were in their own order.

    ## When it hurts
    From the first token: wrong text, no error (GSM8K 0 in the report).

    ## Fix
    Remove --moe-runner-backend: auto follows the switch. Or unset SGLANG_USE_AITER.
    """
    if (
        launch["gpu.platform"] != "hip"
        or launch["model.quant_kind"] != "fp8"
        or not launch["model.quant_block"]
    ):
        return
    if launch["source.fp8_aiter_layout_for_any_runner"]:
        yield rule.finding(
            flags=("SGLANG_USE_AITER=1", *typed(launch, "moe_runner_backend")),
            cause=f"the experts are shuffled for AITER whichever runner reads them "
            f"({launch.where('source.fp8_aiter_layout_for_any_runner')})",
            impact="from the first token the output is wrong, without an error",
            fix=_AUTO,
            evidence=(line(launch, "fp8_aiter_layout_for_any_runner"),),
        )


@rule(
    "RUN104",
    "mxfp8-experts-off-sm100",
    Severity.ERROR,
    summary="MXFP8 experts have no kernel on this GPU",
    needs=("gpu.platform", "gpu.sm", "model.quant", "source.mxfp8_experts_need_sm100"),
    evidence=(Evidence("report", "https://github.com/kvcache-ai/ktransformers/issues/2058"),),
    applies=lambda launch: (
        is_moe(launch) and "mxfp8" in (launch.get("model.quant"), launch.get("args.quantization"))
    ),
)
def mxfp8_gpu(rule: Rule, launch: Launch) -> Iterator[Finding]:
    """MXFP8 experts on a CUDA GPU other than SM100.

    ## What it checks
    The experts are MXFP8, by the checkpoint or by --quantization, and the GPU is CUDA but not of the SM10x family.

    ## Why it matters
    SGLang overrides the runner that was asked for, and the kernel that it takes is built for SM10x (and ROCm gfx95).

    ## When it hurts
    Once the weights are read: a RuntimeError in every worker while they are repacked.

    ## Fix
    Use a block-FP8 or bf16 checkpoint on this GPU.
    """
    if (
        launch["gpu.platform"] != "cuda"
        or major(launch) == 10
        or env_on(launch, "SGLANG_FORCE_MXFP8_BLOCK_CONVERT")
    ):
        return
    if launch["source.mxfp8_experts_need_sm100"]:
        yield rule.finding(
            flags=typed(launch, "quantization"),
            cause=f"this launch targets SM{launch['gpu.sm']}; MXFP8 experts raise on every CUDA GPU but SM10x "
            f"({launch.where('source.mxfp8_experts_need_sm100')})",
            impact="a RuntimeError in every worker, once the weights are read",
            fix=Fix("use a block-FP8 or bf16 checkpoint on this GPU"),
            evidence=(line(launch, "mxfp8_experts_need_sm100"),),
        )


@rule(
    "RUN105",
    "w4afp8-experts-with-deepep",
    Severity.ERROR,
    summary="the W4AFP8 combine under DeepEP calls its kernel wrongly",
    needs=("model.quant", "args.moe_a2a_backend", "args.deepep_mode", "source.w4afp8_deepep_call_incomplete"),
    evidence=(issue(33660),),
    applies=lambda launch: (
        launch.get("model.quant") == "w4afp8" and launch.get("args.moe_a2a_backend") == "deepep"
    ),
)
def w4afp8_deepep(rule: Rule, launch: Launch) -> Iterator[Finding]:
    """W4AFP8 experts with --moe-a2a-backend deepep.

    ## What it checks
    Both are on, DeepEP's normal mode is in use (prefill takes it unless --deepep-mode low_latency), and the installed
    combine leaves out an argument that its kernel requires.

    ## Why it matters
    A refactoring added the argument to the kernel and not to this call.

    ## When it hurts
    Start-up may pass; every rank dies at the first prefill with a TypeError.

    ## Fix
    Run without DeepEP (--moe-a2a-backend none), or a release that passes the argument.
    """
    if launch.get("args.deepep_mode") != "low_latency" and launch["source.w4afp8_deepep_call_incomplete"]:
        missing = launch.fact("source.w4afp8_deepep_call_incomplete")
        yield rule.finding(
            flags=typed(launch, "quantization", "moe_a2a_backend"),
            cause=f"the combine calls deepep_post_reorder_triton_kernel without one of its arguments ({missing.where})",
            impact="every rank dies at the first prefill",
            fix=Fix("remove --moe-a2a-backend deepep", {"moe_a2a_backend": None}, applicability="display"),
            evidence=(line(launch, "w4afp8_deepep_call_incomplete"),),
        )

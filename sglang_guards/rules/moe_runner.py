"""RUN1xx: experts that the requested runner cannot run, or runs wrongly."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_guards.launch.facts import Launch
from sglang_guards.report.model import Severity
from sglang_guards.rules import Violation, manual, public_note, rule, set_to, sglang_issue, unset
from sglang_guards.rules.reports_common import AUTO_RUNNER, env_on, is_moe, major, runner_backend


@rule(
    "RUN101",
    "fp8-experts-on-flashinfer-cutlass",
    Severity.ERROR,
    summary="FP8 experts have no runner for flashinfer_cutlass",
    source={"fp8_cutlass_without_runner": True},
    reports=[sglang_issue(27951)],
    applies=lambda launch: runner_backend(launch) == "flashinfer_cutlass" and is_moe(launch),
)
def fp8_cutlass(launch: Launch) -> Iterator[Violation]:
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
    if launch["model.quant_kind"] == "fp8":
        yield Violation(
            flags=("moe_runner_backend",),
            cause="the FP8 expert method builds runners for Triton, DeepGEMM and TRT-LLM only",
            impact="the first forward, after the weights are loaded, dies with an AttributeError",
            fix=AUTO_RUNNER,
        )


@rule(
    "RUN102",
    "quark-mxfp4-experts-without-aiter",
    Severity.ERROR,
    summary="Quark MXFP4 experts run on AITER only",
    source={"quark_mxfp4_needs_aiter": True},
    reports=[public_note("https://github.com/AMD-AGI/Hyperloom/issues/1036")],
    applies=lambda launch: runner_backend(launch) not in ("auto", "aiter") and is_moe(launch),
)
def quark_mxfp4(launch: Launch) -> Iterator[Violation]:
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
    if launch["model.quant_kind"] == "quark_mxfp4":
        yield Violation(
            flags=("moe_runner_backend",),
            cause=f"the Quark MXFP4 scheme builds no runner for {runner_backend(launch)}",
            impact="every worker dies while the model loads or in the first forward",
            fix=AUTO_RUNNER,
        )


@rule(
    "RUN103",
    "aiter-weights-read-by-triton",
    Severity.ERROR,
    summary="Triton reads FP8 expert weights in AITER's layout",
    source={"fp8_aiter_layout_for_any_runner": True},
    reports=[public_note("https://github.com/AMD-AGI/Hyperloom/pull/1459")],
    applies=lambda launch: (
        env_on(launch, "SGLANG_USE_AITER") and runner_backend(launch) == "triton" and is_moe(launch)
    ),
)
def aiter_layout(launch: Launch) -> Iterator[Violation]:
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
        launch["gpu.platform"] == "hip"
        and launch["model.quant_kind"] == "fp8"
        and launch["model.quant_block"]
    ):
        yield Violation(
            flags=("SGLANG_USE_AITER=1", "moe_runner_backend"),
            cause="the expert weights are shuffled for AITER whichever runner reads them",
            impact="the output is wrong from the first token, without an error",
            fix=AUTO_RUNNER,
        )


@rule(
    "RUN104",
    "mxfp8-experts-off-sm100",
    Severity.ERROR,
    summary="MXFP8 experts have no kernel on this GPU",
    source={"mxfp8_experts_need_sm100": True},
    reports=[public_note("https://github.com/kvcache-ai/ktransformers/issues/2058")],
    applies=lambda launch: (
        (launch["args.quantization"] == "mxfp8" or launch["model.quant"] == "mxfp8") and is_moe(launch)
    ),
)
def mxfp8_gpu(launch: Launch) -> Iterator[Violation]:
    """MXFP8 experts on a CUDA GPU other than SM100.

    ## What it checks
    The experts are MXFP8, by the checkpoint or by --quantization, and the GPU is CUDA but not of the SM10x family.

    ## Why it matters
    SGLang overrides the runner that was requested, and the kernel that it takes is built for SM10x (and ROCm gfx95).

    ## When it hurts
    Once the weights are read: a RuntimeError in every worker while they are repacked.

    ## Fix
    Use a block-FP8 or bf16 checkpoint on this GPU.
    """
    if launch["gpu.platform"] != "cuda" or major(launch) == 10:
        return
    if not env_on(launch, "SGLANG_FORCE_MXFP8_BLOCK_CONVERT"):
        yield Violation(
            flags=("quantization",),
            cause=f"the GPU is SM{launch['gpu.sm']}; MXFP8 experts raise on every CUDA GPU but SM10x",
            impact="a RuntimeError in every worker, once the weights are read",
            fix=manual("use a block-FP8 or bf16 checkpoint on this GPU"),
        )


@rule(
    "RUN105",
    "w4afp8-experts-with-deepep",
    Severity.ERROR,
    summary="W4AFP8 experts call DeepEP's combine kernel with an argument missing",
    source={"w4afp8_deepep_call_incomplete": True},
    reports=[sglang_issue(33660)],
    applies=lambda launch: launch["args.moe_a2a_backend"] == "deepep" and launch["model.quant"] == "w4afp8",
)
def w4afp8_deepep(launch: Launch) -> Iterator[Violation]:
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
    if launch["args.deepep_mode"] != "low_latency":
        yield Violation(
            flags=("quantization", "moe_a2a_backend"),
            cause="the call of deepep_post_reorder_triton_kernel leaves out one of its arguments",
            impact="every rank dies with a TypeError at the first prefill",
            fix=unset("moe_a2a_backend", safe=False),
        )


@rule(
    "RUN112",
    "fp8-experts-on-a-gpu-without-fp8",
    Severity.ERROR,
    summary="FP8 experts run on Triton, which compiles FP8 kernels from SM89 on only",
    source={"fp8_experts_fall_back_to_marlin": False},
    reports=[sglang_issue(18875)],
    applies=lambda launch: (
        launch["gpu.platform"] == "cuda" and int(launch["gpu.sm"]) < 89 and launch.get("model.quant") == "fp8"
    ),
)
def fp8_without_hardware(launch: Launch) -> Iterator[Violation]:
    """An FP8 MoE checkpoint (or `--quantization fp8`) on an A100 or an older GPU.

    ## What it checks
    The experts are FP8 (SGLang's own FP8 method, per block or per tensor), they run on Triton, the GPU is below SM89,
    and the installed expert method has no way through Marlin. Dense FP8 layers have one, so dense models work.

    ## Why it matters
    Triton knows the type of the weights (e4m3) from SM89 on only.

    ## When it hurts
    In the first forward, after the weights have loaded: «type fp8e4nv not supported in this architecture».

    ## Example
    `--model-path MiniMaxAI/MiniMax-M2.5 --tp 8 --ep-size 8` on 8 × A100. It works with a 16-bit or an INT4 checkpoint
    (AWQ, GPTQ), or on a GPU from SM89 on.

    ## Fix
    Remove `--quantization fp8`, or take a checkpoint of another precision.
    """
    if not launch["model.is_moe"] or launch["target.runner"] != "triton":
        return
    way_out = "use a 16-bit or INT4 (AWQ, GPTQ) checkpoint, or a GPU from SM89 on"
    typed = launch.given("quantization")
    yield Violation(
        flags=("quantization",) if typed else (),
        cause=f"the GPU is SM{launch['gpu.sm']}, and the experts' FP8 kernel is Triton's, which needs SM89",
        impact="the weights load, then the first forward dies: type fp8e4nv not supported in this architecture",
        fix=unset("quantization", otherwise=way_out, safe=False)
        if typed and not launch["model.quant_config"]
        else manual(way_out),
    )


@rule(
    "RUN113",
    "cutlass-fp8-with-expert-parallelism",
    Severity.WARNING,
    summary="CUTLASS FP8 experts read routing maps that are not written for the experts of other ranks",
    source={"cutlass_maps_cover_all_routes": False},
    measured=(
        "H200, SGLang's own expert layer with block FP8, EP 2, cutlass: 0.5.15 dies with an illegal memory access, "
        "0.5.23 runs right",
    ),
    applies=lambda launch: (
        launch["args.moe_runner_backend"] == "cutlass" and int(launch["args.ep_size"] or 1) > 1
    ),
)
def cutlass_with_ep(launch: Launch) -> Iterator[Violation]:
    """--moe-runner-backend cutlass with block-FP8 experts and --ep-size above 1.

    ## What it checks
    The experts are FP8 with block scales, tokens are not dispatched to other ranks (--moe-a2a-backend none), and the
    installed CUTLASS path takes its routing maps from torch.empty and leaves it to sgl_kernel's prepare_moe_input to
    fill them. Later releases have a function of their own that fills every entry.

    ## Why it matters
    Routes to the experts of another rank have no entry. What the memory held is taken for a row number.

    ## When it hurts
    At the first batches: an illegal memory access in every rank. Measured on 0.5.15; other releases with the same code
    were not run. To confirm: send one long prompt.

    ## Fix
    Remove --ep-size (tensor parallelism then splits the experts), or use the Triton runner.
    """
    if launch["model.quant_kind"] != "fp8" or not launch["model.quant_block"]:
        return
    if not launch["target.experts_filtered"]:
        return
    yield Violation(
        flags=("moe_runner_backend", "ep_size"),
        cause=f"with EP {launch['args.ep_size']} routes to other ranks' experts have no entry in the maps",
        impact="an illegal memory access in every rank at the first batches, on an H200 with 0.5.15",
        fix=set_to("moe_runner_backend", "triton", otherwise="remove --ep-size", safe=False),
    )

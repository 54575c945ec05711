"""RUN2xx: experts under LoRA or expert parallelism; RUN3xx: a runner that only costs."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_guards.launch.facts import Launch
from sglang_guards.report.model import Severity
from sglang_guards.rules import Violation, manual, public_note, rule, set_to, sglang_issue, unset
from sglang_guards.rules.reports_common import NO_A2A, ep_size, has_lora, is_moe, major, runner_backend


def _by_adapter(launch: Launch) -> Severity | None:
    """Error where the adapters are known to touch the experts, warning where they are not known."""
    wrapped = launch.get("target.lora_wrapped")
    return Severity.WARNING if wrapped is None else (Severity.ERROR if wrapped else None)


def _who(launch: Launch) -> str:
    known = launch.get("target.lora_wrapped")
    return (
        "the adapters target the experts, and"
        if known
        else "if an adapter targets the experts (it could not be read),"
    )


@rule(
    "RUN201",
    "mxfp4-lora-on-triton",
    Severity.ERROR,
    summary="MXFP4 experts do not support the Triton LoRA runner",
    source={"mxfp4_has_triton_lora": False},
    reports=[sglang_issue(27930)],
    applies=lambda launch: (
        runner_backend(launch) == "triton" and has_lora(launch) and launch["model.quant"] == "mxfp4"
    ),
)
def mxfp4_lora(launch: Launch) -> Iterator[Violation]:
    """LoRA on MXFP4 experts with the Triton runner.

    ## What it checks
    The experts are MXFP4 (gpt-oss), the runner is Triton, adapters are on, and the installed MXFP4 method cannot
    hand its weights to the Triton LoRA runner.

    ## Why it matters
    The LoRA wrapper asks for them when a layer is wrapped.

    ## When it hurts
    At start-up, after the weights have loaded: NotImplementedError in every worker. Only if an adapter targets both
    expert projections; where the adapter cannot be read this is a warning.

    ## Fix
    Serve the bf16 conversion of the checkpoint, or adapters that leave the experts alone.
    """
    severity = _by_adapter(launch)
    if severity is not None and is_moe(launch):
        yield Violation(
            severity=severity,
            flags=("moe_runner_backend", "lora_paths"),
            cause=f"{_who(launch)} the LoRA wrapper needs Triton weights, which the MXFP4 method does not provide",
            impact="NotImplementedError in every worker, after the weights are loaded",
            fix=manual("serve the bf16 conversion of the checkpoint"),
        )


@rule(
    "RUN202",
    "lora-on-experts-with-expert-parallelism",
    Severity.ERROR,
    summary="MoE LoRA does not support expert parallelism",
    source={"lora_experts_know_ep": False},
    reports=[sglang_issue(23178)],
    applies=lambda launch: ep_size(launch) > 1 and has_lora(launch) and is_moe(launch),
)
def lora_ep(launch: Launch) -> Iterator[Violation]:
    """LoRA on experts with --ep-size above 1.

    ## What it checks
    Adapters and expert parallelism are on, and the installed LoRA buffers are sized for all experts.

    ## Why it matters
    The expert ids of a rank are local, those of experts elsewhere are -1; neither fits the buffers.

    ## When it hurts
    An illegal memory access in the first forward with an adapter. Only if an adapter targets the experts; where it
    cannot be read this is a warning.

    ## Fix
    --ep-size 1, or a release whose LoRA knows expert parallelism (0.5.11 does).
    """
    severity = _by_adapter(launch)
    if severity is not None:
        yield Violation(
            severity=severity,
            flags=("ep_size", "lora_paths"),
            cause=f"{_who(launch)} the LoRA buffers hold all experts while the expert ids of a rank are local",
            impact="an illegal memory access in the first forward with an adapter",
            fix=set_to("ep_size", 1, safe=False),
        )


@rule(
    "RUN203",
    "lora-virtual-experts-on-gated-experts",
    Severity.ERROR,
    summary="LoRA on virtual experts computes the adapter's up half from the gate's factor, which gives wrong output",
    source={"virtual_experts_lose_up_half": True},
    reports=[sglang_issue(27274)],
    applies=lambda launch: (
        bool(launch["args.lora_use_virtual_experts"]) and has_lora(launch) and is_moe(launch)
    ),
)
def virtual_experts(launch: Launch) -> Iterator[Violation]:
    """--lora-use-virtual-experts on gated (SwiGLU) experts.

    ## What it checks
    The switch is on and the installed runner does not tell the kernel that gate and up have a factor each.

    ## Why it matters
    The up half of the delta is then computed from the gate's low-rank factor.

    ## When it hurts
    From the first token of every request with an adapter: the adapter is half wrong, without an error. Only if an
    adapter targets the experts; where it cannot be read this is a warning.

    ## Fix
    Remove --lora-use-virtual-experts: the plain path is right.
    """
    severity = _by_adapter(launch)
    if severity is None or str(launch["model.architecture"]).startswith(
        "NemotronH"
    ):  # experts without a gate
        return
    yield Violation(
        severity=severity,
        flags=("lora_use_virtual_experts",),
        cause=f"{_who(launch)} the adapter's up half is computed from the gate's low-rank factor",
        impact="every request with an adapter gets wrong text from the first token, without an error",
        fix=unset("lora_use_virtual_experts"),
    )


@rule(
    "RUN204",
    "gpt-oss-bf16-with-expert-parallelism",
    Severity.WARNING,
    summary="the bf16 gpt-oss loader does not split experts by EP rank",
    source={"fused_expert_loader_knows_ep": False},
    reports=[sglang_issue(22784)],
    applies=lambda launch: ep_size(launch) > 1 and launch["model.architecture"] == "GptOssForCausalLM",
)
def gpt_oss_loader(launch: Launch) -> Iterator[Violation]:
    """An unquantized gpt-oss checkpoint with --ep-size above 1.

    ## What it checks
    The checkpoint keeps all experts in one tensor (gpt-oss without MXFP4) and the installed loader splits it by TP
    only.

    ## Why it matters
    Under expert parallelism each rank has room for its share of the experts and is handed all of them.

    ## When it hurts
    While the weights load: a shape mismatch on every rank (reported for 0.5.10). A 20B conversion with per-expert
    tensors was reported to work, hence a warning. To confirm: look for one tensor per layer named experts.gate_up_proj.

    ## Fix
    --ep-size 1.
    """
    if launch["model.quant_kind"] == "unquantized":
        yield Violation(
            flags=("ep_size",),
            cause="the loader for checkpoints that keep all experts in one tensor ignores the expert-parallel rank",
            impact="a shape mismatch on every rank while the weights load",
            fix=set_to("ep_size", 1, safe=False),
        )


@rule(
    "RUN301",
    "triton-forced-on-sm100-for-the-fused-sum",
    Severity.WARNING,
    summary="forcing the Triton runner costs more than the fused sum can gain",
    reports=[
        public_note("public note, GLM-5.2 FP8, 8×B200 TP 8, SGLang 0.5.15.post1: 603 against 793 tok/s")
    ],
    applies=lambda launch: (
        bool(launch["args.enable_fused_moe_sum_all_reduce"])
        and runner_backend(launch) == "triton"
        and is_moe(launch)
    ),
)
def forced_triton(launch: Launch) -> Iterator[Violation]:
    """--moe-runner-backend triton on SM10x so that the fused MoE sum has something to act on.

    ## What it checks
    FP8 experts, no all-to-all backend, the fused sum on, Triton named by the operator, a GPU of the SM10x family.

    ## Why it matters
    The native TRT-LLM runner of these GPUs never reads the flag, and it is faster than Triton with the flag: a
    public measurement lost 24 % of the throughput.

    ## When it hurts
    All the time. To confirm: run the same load once without both flags.

    ## Fix
    Remove both flags.
    """
    if launch["model.quant_kind"] != "fp8" or launch["args.moe_a2a_backend"] not in NO_A2A:
        return
    if launch.given("moe_runner_backend") and major(launch) == 10 and not has_lora(launch):
        yield Violation(
            flags=("moe_runner_backend", "enable_fused_moe_sum_all_reduce"),
            cause=f"SM{launch['gpu.sm']} has a native runner for FP8 experts, which Triton replaces here",
            impact="a public measurement lost 24 % of the throughput; to confirm, measure without both flags",
            fix=unset("moe_runner_backend", "enable_fused_moe_sum_all_reduce", safe=False),
        )

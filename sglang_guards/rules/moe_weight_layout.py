"""RUN2xx: experts under LoRA or expert parallelism; RUN3xx: a runner that only costs."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_guards.launch.facts import Launch
from sglang_guards.report.model import Evidence, Finding, Fix, Severity
from sglang_guards.rules import Rule, rule
from sglang_guards.rules.reports_common import NO_A2A, has_lora, is_moe, issue, line, major, typed

_LORA = ("lora.enabled", "target.lora_wrapped")


def _lora_on_experts(launch: Launch) -> bool:
    return is_moe(launch) and has_lora(launch)


def _by_adapter(launch: Launch) -> Severity | None:
    """Error where the adapters are known to touch the experts, warning where they are not known."""
    wrapped = launch.get("target.lora_wrapped")
    return Severity.WARNING if wrapped is None else (Severity.ERROR if wrapped else None)


def _who(launch: Launch) -> str:
    known = launch.get("target.lora_wrapped")
    return (
        "the adapters target the experts"
        if known
        else "if an adapter targets the experts (it could not be read)"
    )


@rule(
    "RUN201",
    "mxfp4-lora-on-triton",
    Severity.ERROR,
    summary="MXFP4 experts cannot serve the Triton LoRA runner",
    needs=(*_LORA, "args.moe_runner_backend", "model.quant", "source.mxfp4_has_triton_lora"),
    evidence=(issue(27930),),
    applies=lambda launch: _lora_on_experts(launch) and launch.get("model.quant") == "mxfp4",
)
def mxfp4_lora(rule: Rule, launch: Launch) -> Iterator[Finding]:
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
    if severity is None or launch.get("args.moe_runner_backend") != "triton":
        return
    if launch["source.mxfp4_has_triton_lora"] is False:
        yield rule.finding(
            severity=severity,
            flags=typed(launch, "moe_runner_backend", "lora_paths"),
            cause=f"{_who(launch)}, the wrapper asks for Triton weights that the MXFP4 method does not give "
            f"({launch.where('source.mxfp4_has_triton_lora')})",
            impact="NotImplementedError in every worker, after the weights have loaded",
            fix=Fix("serve the bf16 conversion of the checkpoint"),
            evidence=(line(launch, "mxfp4_has_triton_lora"),),
        )


@rule(
    "RUN202",
    "lora-on-experts-with-expert-parallelism",
    Severity.ERROR,
    summary="LoRA on experts does not know expert parallelism",
    needs=(*_LORA, "args.ep_size", "source.lora_experts_know_ep"),
    evidence=(issue(23178),),
    applies=lambda launch: _lora_on_experts(launch) and int(launch.get("args.ep_size") or 1) > 1,
)
def lora_ep(rule: Rule, launch: Launch) -> Iterator[Finding]:
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
    if severity is not None and launch["source.lora_experts_know_ep"] is False:
        yield rule.finding(
            severity=severity,
            flags=typed(launch, "ep_size", "lora_paths"),
            cause=f"{_who(launch)}, its buffers hold all experts while the ids of a rank are local "
            f"({launch.where('source.lora_experts_know_ep')})",
            impact="an illegal memory access in the first forward with an adapter",
            fix=Fix("remove --ep-size", {"ep_size": 1}, applicability="display"),
            evidence=(line(launch, "lora_experts_know_ep"),),
        )


@rule(
    "RUN203",
    "lora-virtual-experts-on-gated-experts",
    Severity.ERROR,
    summary="virtual experts compute half of the adapter from the wrong factor",
    needs=(
        *_LORA,
        "args.lora_use_virtual_experts",
        "model.architecture",
        "source.virtual_experts_lose_up_half",
    ),
    evidence=(issue(27274),),
    applies=lambda launch: _lora_on_experts(launch) and bool(launch.get("args.lora_use_virtual_experts")),
)
def virtual_experts(rule: Rule, launch: Launch) -> Iterator[Finding]:
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
    ):  # its experts are not gated
        return
    if launch["source.virtual_experts_lose_up_half"]:
        yield rule.finding(
            severity=severity,
            flags=typed(launch, "lora_use_virtual_experts"),
            cause=f"{_who(launch)}, its up half is computed from the gate's factor "
            f"({launch.where('source.virtual_experts_lose_up_half')})",
            impact="from the first token of every request with an adapter, without an error",
            fix=Fix("remove --lora-use-virtual-experts", {"lora_use_virtual_experts": None}),
            evidence=(line(launch, "virtual_experts_lose_up_half"),),
        )


@rule(
    "RUN204",
    "gpt-oss-bf16-with-expert-parallelism",
    Severity.WARNING,
    summary="the bf16 gpt-oss loader does not split experts by rank",
    needs=("model.architecture", "model.quant_kind", "args.ep_size", "source.fused_expert_loader_knows_ep"),
    evidence=(issue(22784),),
    applies=lambda launch: (
        launch.get("model.architecture") == "GptOssForCausalLM" and int(launch.get("args.ep_size") or 1) > 1
    ),
)
def gpt_oss_loader(rule: Rule, launch: Launch) -> Iterator[Finding]:
    """An unquantized gpt-oss checkpoint with --ep-size above 1.

    ## What it checks
    The checkpoint keeps all experts in one tensor (gpt-oss without MXFP4) and the installed loader splits it by TP
    only.

    ## Why it matters
    Under expert parallelism each rank has room for its share of the experts and is handed all of them.

    ## When it hurts
    While the weights load: a shape mismatch on every rank (reported for 0.5.10). A 20B conversion with per-expert
    tensors was reported to work, hence a warning. To tell: look for one tensor per layer named experts.gate_up_proj.

    ## Fix
    --ep-size 1.
    """
    if (
        launch["model.quant_kind"] != "unquantized"
        or launch["source.fused_expert_loader_knows_ep"] is not False
    ):
        return
    yield rule.finding(
        flags=typed(launch, "ep_size"),
        cause=f"the loader of checkpoints with all experts in one tensor never looks at the expert-parallel rank "
        f"({launch.where('source.fused_expert_loader_knows_ep')})",
        impact="a shape mismatch on every rank while the weights load",
        fix=Fix("remove --ep-size", {"ep_size": 1}, applicability="display"),
        evidence=(line(launch, "fused_expert_loader_knows_ep"),),
    )


@rule(
    "RUN301",
    "triton-forced-on-sm100-for-the-fused-sum",
    Severity.WARNING,
    summary="forcing the Triton runner costs more than the fused sum can bring",
    needs=("args.moe_runner_backend", "args.enable_fused_moe_sum_all_reduce", "model.quant_kind", "gpu.sm"),
    evidence=(
        Evidence(
            "report", "public note, GLM-5.2 FP8, 8×B200 TP 8, SGLang 0.5.15.post1: 603 against 793 tok/s"
        ),
    ),
    applies=lambda launch: (
        is_moe(launch)
        and launch.get("args.moe_runner_backend") == "triton"
        and bool(launch.get("args.enable_fused_moe_sum_all_reduce"))
    ),
)
def forced_triton(rule: Rule, launch: Launch) -> Iterator[Finding]:
    """--moe-runner-backend triton on SM10x so that the fused MoE sum has something to act on.

    ## What it checks
    FP8 experts, no all-to-all backend, the fused sum on, Triton named by the operator, a GPU of the SM10x family.

    ## Why it matters
    The native TRT-LLM runner of these GPUs never reads the flag, and it is faster than Triton with the flag: a
    public measurement lost 24 % of the throughput.

    ## When it hurts
    All the time. To tell: run the same load once without both flags.

    ## Fix
    Remove both flags.
    """
    if launch["model.quant_kind"] != "fp8" or launch.get("args.moe_a2a_backend") not in NO_A2A:
        return
    if launch.given("moe_runner_backend") and major(launch) == 10 and not has_lora(launch):
        yield rule.finding(
            flags=typed(launch, "moe_runner_backend", "enable_fused_moe_sum_all_reduce"),
            cause=f"SM{launch['gpu.sm']} has a native runner for FP8 experts, which Triton replaces here",
            impact="all the time: a public measurement lost 24 % of the throughput; "
            "to tell, measure without both flags",
            fix=Fix(
                "remove --moe-runner-backend and --enable-fused-moe-sum-all-reduce",
                {"moe_runner_backend": None, "enable_fused_moe_sum_all_reduce": None},
                applicability="display",
            ),
        )

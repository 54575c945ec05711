"""FMS1xx: launches where the fused MoE sum gives wrong results or kills the server."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_guards.launch.facts import Launch
from sglang_guards.report.model import Evidence, Finding, Fix, Severity
from sglang_guards.rules import Rule, rule
from sglang_guards.rules.fused_sum_common import (
    FIELD,
    FLAG,
    LAYER_NEEDS,
    PATCHED_FIX,
    REMOVE,
    acts_on,
    flag_on,
    layers,
    named,
)

FMS101_FIX = Fix(
    f"remove {FLAG}, upgrade to SGLang 0.5.23, or apply this release's series from the project's patches/",
    {FIELD: None},
)
_H200 = Evidence("measured", "benchmarks/results, one NVIDIA H200, SGLang 0.5.15")


@rule(
    "FMS101",
    "fused-sum-with-filtered-experts",
    Severity.ERROR,
    summary="fused MoE sum writes out of bounds when experts are filtered",
    needs=(
        *LAYER_NEEDS,
        "target.experts_filtered",
        "draft.experts_filtered",
        "source.zero_store_guarded",
        "source.gate_checks_experts_filtered",
        "args.kt_weight_path",
    ),
    evidence=(Evidence("report", "https://github.com/sgl-project/sglang/pull/30485"), _H200),
    applies=flag_on,
)
def out_of_bounds(rule: Rule, launch: Launch) -> Iterator[Finding]:
    """Fused MoE sum with expert parallelism or KTransformers.

    ## What it checks
    The flag is on, a Triton MoE layer of the target or the draft holds only a part of the experts on each rank, and
    the installed kernel still stores zeros for blocks of experts that live elsewhere.

    ## Why it matters
    With the flag the output has one row per token. The zero store of a filtered block still counts one row per token
    and expert, so it writes past the end of the output and over rows of other tokens.

    ## When it hurts
    Start-up, the health check and short prompts pass. The first longer batch dies with an illegal memory access on
    every rank; where the neighbouring memory happens to be valid it is overwritten in silence.

    ## Fix
    Remove the flag, or run a SGLang whose kernel guards the store (0.5.23 does), or apply the patch series.
    """
    hit = layers(launch, lambda which: acts_on(launch, which) and bool(launch[f"{which}.experts_filtered"]))
    if not hit or launch["source.zero_store_guarded"] or launch.get("source.gate_checks_experts_filtered"):
        return
    kt = bool(launch.get("args.kt_weight_path"))
    yield rule.finding(
        message="fused MoE sum writes out of bounds under "
        + ("KTransformers expert offload" if kt else "expert parallelism"),
        flags=(launch.flag(FIELD), launch.flag("kt_weight_path" if kt else "ep_size")),
        cause=f"{launch.fact(f'{hit[0]}.experts_filtered').where}, so blocks of the others take the filtered branch, "
        f"which stores zeros over num_tokens × top_k rows of a num_tokens-row output "
        f"({launch.where('source.zero_store_guarded')})",
        impact="start-up and short prompts pass; the first longer batch dies with an illegal memory access on "
        "every rank",
        fix=FMS101_FIX,
        evidence=(Evidence("source", launch.where("source.zero_store_guarded")),),
    )


@rule(
    "FMS102",
    "fused-sum-on-unsupported-platform",
    Severity.ERROR,
    summary="fused MoE sum returns garbage on this platform",
    needs=(
        *LAYER_NEEDS,
        "gpu.platform",
        "source.combine_covers_hip",
        "source.combine_covers_xpu",
        "source.combine_covers_musa",
        "source.combine_covers_other",
    ),
    evidence=(),
    applies=flag_on,
)
def unsupported_platform(rule: Rule, launch: Launch) -> Iterator[Finding]:
    """Fused MoE sum outside CUDA.

    ## What it checks
    The flag is on, a MoE layer of the target or the draft runs on Triton, and the combine step of the installed
    SGLang ignores the flag on this platform (ROCm, XPU and others).

    ## Why it matters
    The down projection adds its result into the output. The platform's combine then overwrites that output with the
    sum of a buffer that nobody wrote.

    ## When it hurts
    From the first token: the text is garbage, with no error.

    ## Fix
    Remove the flag. On ROCm a runner other than Triton (AITER) makes the flag do nothing instead.
    """
    platform = str(launch["gpu.platform"])
    if platform in ("cuda", "cpu", "npu", "mps"):  # the latter never reach the Triton runner: FMS201
        return
    hit = layers(launch, lambda which: acts_on(launch, which))
    probe = platform if platform in ("hip", "xpu", "musa") else "other"
    if not hit or launch[f"source.combine_covers_{probe}"]:
        return
    where = launch.where(f"source.combine_covers_{probe}")
    names = {"hip": "ROCm", "xpu": "XPU", "musa": "MUSA"}
    name = names.get(platform, platform)
    yield rule.finding(
        message=f"fused MoE sum returns garbage on {name}",
        flags=(launch.flag(FIELD),),
        cause=f"the MoE layers of {named(hit)} run on Triton, and the {name} combine sums a buffer that the fused "
        f"kernel never writes ({where})",
        impact="from the first token the output is garbage, without an error",
        fix=PATCHED_FIX,
        evidence=(Evidence("source", where),),
    )


@rule(
    "FMS103",
    "fused-sum-with-moe-lora",
    Severity.ERROR,
    summary="fused MoE sum drops the down-projection LoRA of the experts",
    needs=(
        *LAYER_NEEDS,
        "lora.enabled",
        "target.lora_wrapped",
        "source.lora_runner_through_gate",
        "source.gate_checks_lora_hooks",
    ),
    evidence=(_H200,),
    applies=lambda launch: flag_on(launch) and launch.get("lora.enabled") is not False,
)
def lora_dropped(rule: Rule, launch: Launch) -> Iterator[Finding]:
    """Fused MoE sum with LoRA adapters on the experts.

    ## What it checks
    The flag is on, adapters target the experts' gate_up and down projections, the experts run on Triton, and neither
    the gate nor the combine of the installed SGLang looks at the LoRA hooks.

    ## Why it matters
    The hook adds the adapter's down-projection part to a buffer that is not read when the sum is fused. The adapter
    is applied by half.

    ## When it hurts
    Every request that uses an adapter gets text of a model that does not exist, without an error. Requests without an
    adapter are right.

    ## Fix
    Remove the flag, or apply the patch series.
    """
    if not acts_on(launch, "target") or not launch["target.lora_wrapped"]:
        return
    if not launch["source.lora_runner_through_gate"] or launch["source.gate_checks_lora_hooks"]:
        return
    where = launch.where("source.gate_checks_lora_hooks")
    yield rule.finding(
        flags=(
            launch.flag(FIELD),
            launch.flag("lora_paths" if launch.get("args.lora_paths") else "enable_lora"),
        ),
        cause="the adapters wrap the experts, and their down-projection part is added to a buffer that the fused path "
        f"never reads ({where})",
        impact="every request with an adapter gets wrong text, without an error",
        fix=PATCHED_FIX,
        evidence=(Evidence("source", where),),
    )


@rule(
    "FMS104",
    "fused-sum-with-deterministic-inference",
    Severity.ERROR,
    summary="fused MoE sum breaks deterministic inference",
    needs=(
        *LAYER_NEEDS,
        "args.enable_deterministic_inference",
        "args.rl_on_policy_target",
        "source.gate_checks_deterministic",
    ),
    evidence=(_H200,),
    applies=flag_on,
)
def not_deterministic(rule: Rule, launch: Launch) -> Iterator[Finding]:
    """Fused MoE sum under deterministic inference or on-policy RL.

    ## What it checks
    The flag is on, --enable-deterministic-inference or --rl-on-policy-target is set, and a MoE layer of the target or
    the draft runs on Triton.

    ## Why it matters
    The fused sum adds with atomics, in an order that changes from run to run, and bf16 addition depends on the order.

    ## When it hurts
    The same prompt gives different logits on repeated runs; on an H200 repeated runs differed at nearly every size,
    unfused runs never.

    ## Fix
    Remove the flag.
    """
    asked = [
        name
        for name in ("enable_deterministic_inference", "rl_on_policy_target")
        if launch.get(f"args.{name}")
    ]
    if not asked:
        return
    hit = layers(launch, lambda which: acts_on(launch, which))
    if not hit or launch["source.gate_checks_deterministic"]:
        return
    shown = next((name for name in asked if launch.given(name)), asked[-1])
    yield rule.finding(
        flags=(launch.flag(FIELD), launch.flag(shown)),
        cause=f"the MoE layers of {named(hit)} add expert outputs with atomics, whose order changes from run to run",
        impact="repeated runs of one prompt give different logits at nearly every batch size",
        fix=REMOVE,
        evidence=(Evidence("source", launch.where("source.fused_add_found")),),
    )


@rule(
    "FMS105",
    "fused-sum-with-paged-experts",
    Severity.ERROR,
    summary="SGLang refuses the fused MoE sum with paged experts, after loading has begun",
    needs=("args.enable_paged_experts", "source.paged_experts_rejects_flag"),
    evidence=(),
    applies=lambda launch: flag_on(launch) and bool(launch.get("args.enable_paged_experts")),
)
def paged_experts(rule: Rule, launch: Launch) -> Iterator[Finding]:
    """Fused MoE sum with paged experts.

    ## What it checks
    Both flags are on and the installed SGLang raises for the pair.

    ## Why it matters
    Paged experts sum the top-k outputs themselves.

    ## When it hurts
    SGLang raises while the layers are built, in every scheduler process, minutes into the start.

    ## Fix
    Remove the fused-sum flag.
    """
    if not launch["source.paged_experts_rejects_flag"]:
        return
    where = launch.where("source.paged_experts_rejects_flag")
    yield rule.finding(
        flags=(launch.flag(FIELD), launch.flag("enable_paged_experts")),
        cause=f"paged experts sum the top-k outputs themselves and raise when the flag is on ({where})",
        impact="the schedulers die while the layers are built",
        fix=REMOVE,
        evidence=(Evidence("source", where),),
    )

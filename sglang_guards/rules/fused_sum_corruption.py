"""FMS1xx: launches where the fused MoE sum gives wrong results or kills the server."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_guards.launch.facts import Launch
from sglang_guards.report.model import Severity
from sglang_guards.rules import Violation, rule, sglang_issue, unset
from sglang_guards.rules.fused_sum_common import (
    EXISTS,
    FIELD,
    ON_H200,
    PATCHED,
    REMOVE,
    acts_on,
    flag_on,
    layers,
    named,
)
from sglang_guards.source import distribution

_PLATFORMS = {"hip": "ROCm", "xpu": "XPU", "musa": "MUSA"}


@rule(
    "FMS101",
    "fused-sum-with-filtered-experts",
    Severity.ERROR,
    summary="fused MoE sum writes out of bounds when experts are filtered",
    source={"zero_store_guarded": False, "gate_checks_experts_filtered": False},
    only_if=EXISTS,
    reports=[sglang_issue(30485)],
    measured=[ON_H200],
    applies=flag_on,
)
def out_of_bounds(launch: Launch) -> Iterator[Violation]:
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
    if not hit:
        return
    offload = bool(launch["args.kt_weight_path"])
    yield Violation(
        message="fused MoE sum writes out of bounds under "
        + ("KTransformers expert offload" if offload else "expert parallelism"),
        flags=(FIELD, "kt_weight_path" if offload else "ep_size"),
        cause=f"{launch.fact(f'{hit[0]}.experts_filtered').where}; blocks routed to the other experts take the "
        "filtered branch, which stores zeros for num_tokens × top_k rows into an output of num_tokens rows",
        impact="start-up and short prompts pass; the first longer batch dies with an illegal memory access on "
        "every rank",
        fix=unset(
            FIELD,
            otherwise=f"{distribution.upgrade(launch.source.root if launch.source else None, '0.5.23')}, or apply "
            "this release's series from the project's patches/",
        ),
    )


@rule(
    "FMS102",
    "fused-sum-on-unsupported-platform",
    Severity.ERROR,
    summary="fused MoE sum returns garbage on this platform",
    source={
        "ROCm": {"combine_covers_hip": False},
        "XPU": {"combine_covers_xpu": False},
        "MUSA": {"combine_covers_musa": False},
        "other platforms": {"combine_covers_other": False},
    },
    only_if=EXISTS,
    applies=flag_on,
)
def unsupported_platform(launch: Launch) -> Iterator[Violation]:
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
    if platform in ("cuda", "cpu", "npu", "mps"):  # the latter three never reach the Triton runner: FMS201
        return
    hit = layers(launch, lambda which: acts_on(launch, which))
    if not hit:
        return
    name = _PLATFORMS.get(platform, platform)
    yield Violation(
        case=_PLATFORMS.get(platform, "other platforms"),
        message=f"fused MoE sum returns garbage on {name}",
        flags=(FIELD,),
        cause=f"the MoE layers of {named(hit)} run on Triton, and the {name} combine step sums a buffer that the fused "
        "kernel never writes",
        impact="the output is garbage from the first token, without an error",
        fix=PATCHED,
    )


@rule(
    "FMS103",
    "fused-sum-with-moe-lora",
    Severity.ERROR,
    summary="fused MoE sum drops the experts' down-projection LoRA",
    source={"gate_checks_lora_hooks": False, "lora_runner_through_gate": True},
    only_if=EXISTS,
    measured=[ON_H200],
    applies=lambda launch: flag_on(launch) and launch["lora.enabled"] is not False,
)
def lora_dropped(launch: Launch) -> Iterator[Violation]:
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
    if acts_on(launch, "target") and launch["target.lora_wrapped"]:
        yield Violation(
            flags=(FIELD, "lora_paths" if launch["args.lora_paths"] else "enable_lora"),
            cause="the adapters wrap the experts, and their down-projection delta is added to a buffer that the fused "
            "path never reads",
            impact="every request that uses an adapter gets wrong text, without an error",
            fix=PATCHED,
        )


@rule(
    "FMS104",
    "fused-sum-with-deterministic-inference",
    Severity.ERROR,
    summary="fused MoE sum breaks deterministic inference",
    source={"fused_add_found": True, "gate_checks_deterministic": False},
    only_if=EXISTS,
    measured=[ON_H200],
    applies=flag_on,
)
def not_deterministic(launch: Launch) -> Iterator[Violation]:
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
    modes = [
        name for name in ("enable_deterministic_inference", "rl_on_policy_target") if launch[f"args.{name}"]
    ]
    if not modes:
        return
    hit = layers(launch, lambda which: acts_on(launch, which))
    if hit:
        yield Violation(
            flags=(FIELD, next((name for name in modes if launch.given(name)), modes[-1])),
            cause=f"the MoE layers of {named(hit)} add expert outputs with atomics, in an order that changes from run "
            "to run",
            impact="repeated runs of the same prompt give different logits at nearly every batch size",
            fix=REMOVE,
        )


@rule(
    "FMS105",
    "fused-sum-with-paged-experts",
    Severity.ERROR,
    summary="SGLang refuses the fused MoE sum with paged experts only while it builds the layers",
    source={"paged_experts_rejects_flag": True},
    only_if="paged_experts_exists",
    applies=lambda launch: flag_on(launch) and bool(launch["args.enable_paged_experts"]),
)
def paged_experts(launch: Launch) -> Iterator[Violation]:
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
    yield Violation(
        flags=(FIELD, "enable_paged_experts"),
        cause="paged experts sum the top-k outputs themselves and raise when the flag is set",
        impact="every scheduler process dies while the layers are built",
        fix=REMOVE,
    )

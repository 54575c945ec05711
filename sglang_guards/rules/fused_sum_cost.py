"""FMS3xx: launches where the fused MoE sum works and costs speed or precision."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_guards.launch import measurements
from sglang_guards.launch.facts import Launch
from sglang_guards.report.model import Severity
from sglang_guards.rules import Violation, manual, read_in, rule
from sglang_guards.rules.fused_sum_common import (
    EXISTS,
    FIELD,
    ON_H200,
    REMOVE,
    acts_on,
    flag_on,
    layers,
    named,
)


@rule(
    "FMS301",
    "fused-sum-with-ordered-atomics",
    Severity.WARNING,
    summary="fused MoE sum is slower than the default on this SGLang",
    source={"fused_add_relaxed": False, "fused_add_found": True},
    only_if=EXISTS,
    measured=[ON_H200],
    applies=flag_on,
)
def slower(launch: Launch) -> Iterator[Violation]:
    """Fused MoE sum with acquire-release atomics.

    ## What it checks
    The flag acts on a MoE layer, the GPU is SM90 or later, and the installed kernel adds with Triton's default memory
    order.

    ## Why it matters
    ``tl.atomic_add`` without ``sem="relaxed"`` compiles to an acquire-release atomic. Nothing in the kernel needs
    that order, and it costs more than the separate sum that the flag saves.

    ## When it hurts
    In prefill, more so with longer batches. Decode changes by a few percent either way. `sglang-guards bench`
    measures it on your machine; the finding says where its figures come from.

    ## Fix
    Remove the flag, or apply the relaxed-atomics patch, with which the same flag is a gain. Where another runner is
    known to be faster for this shape, the fix names it.
    """
    if launch["gpu.platform"] != "cuda" or launch["gpu.sm"] < 90:
        return
    hit = layers(launch, lambda which: acts_on(launch, which))
    speed = measurements.told(launch) if hit else None
    if speed is None or not speed.slower:
        return
    other = measurements.faster_runner(launch)
    yield Violation(
        flags=(FIELD,),
        cause=f"the MoE layers of {named(hit)} add with acquire-release atomics; {speed.text}",
        impact="prefill slows down as batches grow; decode changes by a few percent",
        fix=REMOVE
        if other is None
        else REMOVE + manual(f"try --moe-runner-backend {other.runner} ({other.text})"),
    )


@rule(
    "FMS302",
    "fused-sum-bf16-before-sm90",
    Severity.WARNING,
    summary="fused MoE sum adds in a compare-and-swap loop: this GPU has no bf16 atomic add",
    reports=[read_in("Triton ahead-of-time compilation for sm_80, sm_86, sm_89: atom.cas.b32 loop")],
    applies=flag_on,
)
def compare_and_swap(launch: Launch) -> Iterator[Violation]:
    """Fused MoE sum in bf16 on a GPU before SM90.

    ## What it checks
    The flag acts on a MoE layer in bf16 and the GPU is older than SM90.

    ## Why it matters
    These GPUs have no bf16 atomic add. Triton compiles it to a compare-and-swap loop, which repeats whenever two of
    the top-k experts of a token write the same word.

    ## When it hurts
    In every MoE layer; how much was not measured.

    ## Fix
    Remove the flag.
    """
    if launch["gpu.platform"] != "cuda" or launch["gpu.sm"] >= 90:
        return
    if layers(launch, lambda which: acts_on(launch, which)) and launch["target.dtype"] == "bfloat16":
        yield Violation(
            flags=(FIELD,),
            cause=f"SM{launch['gpu.sm']} has no native bf16 atomic add, so every addition is a compare-and-swap loop",
            impact="every MoE layer is affected; the slowdown was not measured",
            fix=REMOVE,
        )


@rule(
    "FMS303",
    "fused-sum-accumulates-in-low-precision",
    Severity.INFO,
    summary="fused MoE sum accumulates in 16 bits",
    measured=["CPU simulation over Dirichlet router weights: RMS error ×1.5 to ×1.8 for bf16"],
    applies=flag_on,
)
def low_precision(launch: Launch) -> Iterator[Violation]:
    """Fused MoE sum rounds after every expert.

    ## What it checks
    The flag acts on a MoE layer in bf16 or fp16.

    ## Why it matters
    The default adds the top-k outputs in fp32 and rounds once. The fused sum rounds after each addition, in an order
    that changes from run to run: about 1.5 times the rounding error at top-6, 1.8 times at top-10.

    ## When it hurts
    Small differences in logits. On one H200 the outputs differed from the unfused path by 0.4 % (relative norm).

    ## Fix
    None needed; remove the flag where last digits matter.
    """
    hit = layers(launch, lambda which: acts_on(launch, which))
    dtype = launch["target.dtype"] if hit else None
    if dtype not in ("bfloat16", "float16"):
        return
    yield Violation(
        message=f"fused MoE sum accumulates in {'bf16' if dtype == 'bfloat16' else 'fp16'}",
        flags=(FIELD,),
        cause=f"each of the {launch[f'{hit[0]}.top_k']} expert outputs is rounded as it is added, instead of one fp32 "
        "sum that is rounded once",
        impact="logits differ in the low-order bits and are not reproducible",
        fix=REMOVE,
    )

"""QNT102: one FP8 scale over rows that nothing wrote."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_guards.launch.facts import Launch
from sglang_guards.report.model import Severity
from sglang_guards.rules import Violation, manual, rule, unset


@rule(
    "QNT102",
    "per-tensor-fp8-with-expert-parallelism",
    Severity.ERROR,
    summary="under expert parallelism, per-tensor FP8 experts take their scale over memory that nothing wrote",
    source={"fp8_scale_reads_unwritten_rows": True},
    measured=(
        "H200, SGLang 0.5.15 and 0.5.23, SGLang's own expert layer with online FP8, EP 2: 93 and 110 of 192 calls "
        "wrong, nearly all NaN or off by their whole size; none without filtered experts",
    ),
    applies=lambda launch: (
        launch.get("model.quant_kind") == "fp8" and int(launch.get("args.ep_size") or 1) > 1
    ),
)
def unwritten_rows(launch: Launch) -> Iterator[Violation]:
    """--quantization fp8 (or a per-tensor FP8 checkpoint with dynamic activations) with EP above 1 on Triton.

    ## What it checks
    The experts are FP8 with one scale per tensor and dynamic activations, they run on Triton, experts are spread
    over ranks, and in the installed source the scale of the down projection's input is taken over all of its rows
    although the activation writes only those of local experts.

    ## Why it matters
    The other rows hold whatever was in memory. A large leftover makes the scale so large that the real values vanish;
    a NaN makes everything NaN. Block-FP8 and per-channel FP8 do not depend on it.

    ## When it hurts
    From the first tokens, as soon as freed memory is reused: garbage or NaN, no error.

    ## Example
    `--model-path Qwen/Qwen3-30B-A3B --quantization fp8 --tp 2 --ep-size 2`. It works without `--ep-size`, with the
    block-FP8 checkpoint, or with the project's patch.

    ## Fix
    Remove --ep-size (tensor parallelism then splits the experts), or use a block-FP8 checkpoint, or apply the patch.
    """
    if launch["gpu.platform"] != "cuda" or int(launch["gpu.sm"]) < 89 or launch["model.quant_block"]:
        return
    if launch["target.runner"] != "triton" or not launch["target.experts_filtered"]:
        return
    config = launch["model.quant_config"]
    if config and str(config.get("activation_scheme") or "dynamic") != "dynamic":
        return
    ep = int(launch["args.ep_size"])
    way_out = "use a block-FP8 checkpoint, or apply the patch of this project's `patches/`"
    typed = launch.given("ep_size")
    yield Violation(
        flags=tuple(name for name in ("quantization", "ep_size") if launch.given(name)),
        cause=f"with EP {ep} the activation writes the rows of local experts only, and one FP8 scale is taken over all "
        "rows",
        impact="experts can return NaN or noise from the first tokens on, depending on what the memory held before",
        fix=unset("ep_size", otherwise=way_out, safe=False) if typed else manual(way_out),
    )

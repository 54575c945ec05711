"""QNT103: shared experts fused into routed ones of another precision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sglang_guards.launch.checkpoint import is_ignored
from sglang_guards.launch.facts import Launch
from sglang_guards.report.model import Severity
from sglang_guards.rules import Violation, rule, set_to, sglang_issue


@rule(
    "QNT103",
    "shared-experts-fused-across-precisions",
    Severity.WARNING,
    summary="shared experts of 16 bit are fused into quantized routed experts",
    reports=(sglang_issue(25261), sglang_issue(37268)),
    applies=lambda launch: bool(launch.get("model.num_shared_experts")) and _apart(launch) is not None,
)
def across_precisions(launch: Launch) -> Iterator[Violation]:
    """A checkpoint that leaves its shared experts unquantized, while SGLang fuses them with the routed ones.

    ## What it checks
    The checkpoint's quantization config leaves the shared experts out (its ignore list, or AutoRound's
    `extra_config`) and not the routed ones, and SGLang's own construction fuses the shared experts into the tensors
    of the routed ones. Newer releases quantize a 16-bit shared expert to NVFP4 as it is loaded, though not for Marlin.

    ## Why it matters
    Tensors of 16 bit are read into a place made for packed 4- or 8-bit weights.

    ## When it hurts
    While the weights load: a shape error at TP 1 and for Marlin on Hopper. At larger TP reports differ between a
    crash and wrong text. To confirm: the log says `Shared experts fusion` and the load fails, or the text is wrong.

    ## Example
    `--model-path Intel/GLM-5-int4-AutoRound --tp 8` on 0.5.12. It works with `--disable-shared-experts-fusion`.

    ## Fix
    Add --disable-shared-experts-fusion.
    """
    if launch["args.disable_shared_experts_fusion"] or not int(launch["build.target.fused_shared_experts"]):
        return
    name = _apart(launch)
    marlin = launch["target.runner"] == "marlin"
    fp4 = launch["model.quant_kind"] in ("modelopt_fp4", "ct_nvfp4", "nvfp4")
    if fp4 and not marlin and launch["source.fused_shared_expert_is_quantized"]:
        return
    yield Violation(
        flags=("quantization",) if launch.given("quantization") else (),
        cause=f"the checkpoint leaves {name} unquantized, and SGLang fuses it with the routed experts",
        impact="the load fails, or the shared expert is read wrongly and the text is wrong",
        fix=set_to("disable_shared_experts_fusion", True),
        severity=Severity.ERROR if int(launch["args.tp_size"]) == 1 or (fp4 and marlin) else None,
    )


def _apart(launch: Launch) -> str | None:
    """The first shared expert that the quantization leaves out although it takes the routed experts beside it."""
    config = launch.get("model.quant_config")
    layers = launch.get("model.num_layers")
    if not isinstance(config, Mapping) or not isinstance(layers, int):
        return None
    patterns = [*(launch.get("model.quant_ignored") or ()), *_sixteen_bit(config)]
    for layer in range(layers):
        shared = f"model.layers.{layer}.mlp.shared_experts.down_proj"
        routed = f"model.layers.{layer}.mlp.experts.0.down_proj"
        if is_ignored(shared, patterns) and not is_ignored(routed, patterns):
            return shared
    return None


def _sixteen_bit(config: Mapping[str, Any]) -> list[str]:
    """Modules that AutoRound's own list keeps at 16 bit."""
    extra = config.get("extra_config")
    if not isinstance(extra, Mapping):
        return []
    return [
        str(name) for name, entry in extra.items() if isinstance(entry, Mapping) and entry.get("bits") == 16
    ]

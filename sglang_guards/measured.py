"""What was measured about the fused sum for a launch's shape, and where: the source of every figure that rules print.

A profile that `sglang-guards bench` made on this machine comes first, then the results that ship with the package.
"""

from __future__ import annotations

from dataclasses import dataclass

from sglang_guards.bench.profile import load_profile, shipped_results
from sglang_guards.launch import Launch, MissingFact


@dataclass(frozen=True)
class Told:
    """One clause about speed with its device; `slower` is False only where a profile of this GPU shows no loss."""

    text: str
    slower: bool = True


def shape_key(launch: Launch) -> str:
    """One rank's shape: experts, intermediate size per rank, hidden size, top-k and weights' kind.

    Raises MissingFact when a size is not known.
    """
    tp, ep = int(launch["args.tp_size"]), max(1, int(launch["args.ep_size"]))
    width = int(launch["model.moe_intermediate_size"]) // max(1, tp // ep)
    kind = "fp8" if "fp8" in str(launch["model.quant_kind"]) else "bf16"
    experts = int(launch["model.num_experts"]) // ep
    return f"E{experts}-N{width}-H{launch['model.hidden_size']}-K{launch['target.top_k']}-{kind}"


def told(launch: Launch) -> Told:
    """What is known about speed here; says so when nobody measured this shape or this GPU."""
    try:
        shape = shape_key(launch)
    except MissingFact:
        shape = ""
    return _own(launch, shape) or _shipped(launch, shape)


def _own(launch: Launch, shape: str) -> Told | None:
    device = str(launch.get("gpu.name") or "")
    if not shape or not device or launch.source is None:
        return None
    profile = load_profile(device, launch.source.fingerprint(), shape)
    if profile is None:
        return None
    tokens, ratio = profile.worst
    best = max(profile.ratios.values())
    text = f"measured for this shape on this machine's {device} ({profile.measured}): "
    text += f"{ratio:.2f} of the default's speed at {tokens} tokens, {best:.2f} at best"
    return Told(text, slower=ratio < 1)


def _shipped(launch: Launch, shape: str) -> Told:
    results = shipped_results()
    device, ratios = results["device"], results["shapes"].get(shape)
    if ratios is None:
        low, high = results["span"]
        text = f"over {results['count']} other shapes on one {device}, {low} to {high} of the default's speed"
        return Told(f"nobody measured this shape; {text}")
    tokens, ratio = min(ratios.items(), key=lambda item: item[1])
    text = f"measured for this shape on one {device}: {ratio} of the default's speed at {tokens} tokens"
    if device.lower().removeprefix("nvidia ") not in str(launch.get("gpu.name") or "").lower():
        text += f"; not measured on this GPU (SM{launch['gpu.sm']})"
    return Told(text)

"""What was measured about the fused sum for a launch's shape, and where; the source of every figure that rules print."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from sglang_guards.launch import Launch, MissingFact


@cache
def shipped() -> Mapping[str, Any]:
    """The results that ship with the package: device, SGLang, and speed ratios by shape and token count."""
    text = resources.files("sglang_guards").joinpath("data/fused_sum_h200.json").read_text(encoding="utf-8")
    loaded: Mapping[str, Any] = json.loads(text)
    return loaded


def shape_key(launch: Launch) -> str:
    """One rank's shape: experts, intermediate size per rank, hidden size, top-k and weights' kind.

    Raises MissingFact when a size is not known.
    """
    tp, ep = int(launch["args.tp_size"]), max(1, int(launch["args.ep_size"]))
    width = int(launch["model.moe_intermediate_size"]) // max(1, tp // ep)
    kind = "fp8" if "fp8" in str(launch["model.quant_kind"]) else "bf16"
    experts = int(launch["model.num_experts"]) // ep
    return f"E{experts}-N{width}-H{launch['model.hidden_size']}-K{launch['target.top_k']}-{kind}"


def sentence(launch: Launch) -> str:
    """What is known about speed here, with the device it was measured on; says so when nobody measured."""
    results = shipped()
    try:
        shape = results["shapes"].get(shape_key(launch))
    except MissingFact:
        shape = None
    if shape is None:
        span = results["span"]
        return f"measured at {span[0]} to {span[1]} of the default's speed over {results['count']} shapes on one {results['device']}"
    worst = min(shape.items(), key=lambda item: item[1])
    told = f"measured for this shape on one {results['device']}: {worst[1]} of the default's speed at {worst[0]} tokens"
    name = str(launch.get("gpu.name") or "")
    if results["device"].lower().removeprefix("nvidia ") not in name.lower():
        told += f"; not measured on this GPU (SM{launch['gpu.sm']})"
    return told

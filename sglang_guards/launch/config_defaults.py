"""Keys that a checkpoint's config.json leaves out, as the installed transformers (or SGLang) config class fills them.

SGLang builds the model from the loaded config object, so a missing key means the class's default, not «none». Only
sizes are taken over, and expert counts only for a config that has experts at all: SGLang's class for Qwen3.5 gives
512 experts to a dense checkpoint too.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from sglang_guards.launch.checkpoint import EXPERT_KEYS, TEXT_KEYS, text_config

_SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
)
_OF_EXPERTS = (*EXPERT_KEYS, ("first_k_dense_replace",), ("num_dense_layers",))


def filled(shipped: Mapping[str, Any], loaded: Mapping[str, Any]) -> dict[str, Any]:
    """`shipped` with the missing keys of `loaded`, the same config as an object with defaults shows itself."""
    for key in TEXT_KEYS:
        inner, other = shipped.get(key), loaded.get(key)
        if isinstance(inner, Mapping) and inner:
            return {**shipped, key: filled(inner, other)} if isinstance(other, Mapping) else dict(shipped)
    has_experts = _has_experts(shipped)
    added = {}
    for key, value in loaded.items():
        group = next((group for group in _OF_EXPERTS if key in group), None)
        if shipped.get(key) is not None or value is None or (group is None and key not in _SIZES):
            continue
        if group is None or (has_experts and all(shipped.get(k) is None for k in group)):
            added[key] = value
    return {**shipped, **added}


def _has_experts(config: Mapping[str, Any]) -> bool:
    counts = (config.get(key) for group in EXPERT_KEYS for key in group)
    if any(isinstance(v, int) and not isinstance(v, bool) and v > 0 for v in counts):
        return True
    names = config.get("architectures")
    words = [config.get("model_type"), *(names if isinstance(names, list) else ())]
    return any("moe" in str(word).lower() for word in words)


def class_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """What the loaded transformers' class for this model type has by default; empty where there is none."""
    transformers = sys.modules.get("transformers")
    kind = text_config(config).get("model_type")
    if transformers is None or not isinstance(kind, str):
        return {}
    try:
        return dict(transformers.AutoConfig.for_model(kind).to_dict())
    except Exception:  # noqa: BLE001 - an unknown type, or a class that wants arguments: nothing is filled
        return {}

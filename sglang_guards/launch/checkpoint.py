"""Facts of a checkpoint, read from its config.json (as a dict) and, for ModelOpt exports, hf_quant_config.json."""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any

#: Keys that hold the language model's config inside a multimodal one.
TEXT_KEYS = ("text_config", "llm_config", "language_config", "thinker_config")
_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts", "num_moe_experts")
_TOP_K = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "moe_top_k",
    "moe_topk",
    "moe_k",
    "top_k_experts",
)
_SHARED = ("n_shared_experts", "num_shared_experts", "num_shared_expert")
_SHARED_SIZE = ("shared_expert_intermediate_size", "share_expert_dim", "moe_shared_expert_intermediate_size")
_MOE_SIZE = ("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size_mlp")
_MARKS = re.compile(r"[*?\[]")
#: Keys that say how many experts, of what size, there are; the spellings of one thing together.
EXPERT_KEYS = (_EXPERTS, _TOP_K, _SHARED, _SHARED_SIZE, _MOE_SIZE)
_IGNORED = (
    "modules_to_not_convert",
    "ignored_layers",
    "ignore",
    "exclude_modules",
    "exclude",
    "exclude_layers",
)


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part of a config (nested once or twice in multimodal checkpoints)."""
    for key in TEXT_KEYS:
        inner = config.get(key)
        if isinstance(inner, Mapping) and inner:
            return text_config(inner)
    return config


def model_facts(
    config: Mapping[str, Any], *, quantization: str | None = None, quant_file: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Facts by name without prefix; a name that cannot be told from the config is left out.

    `quantization` is SGLang's resolved method (or the --quantization given), which wins over the config's own.
    """
    text = text_config(config)
    quant_config = quant_dict(config, quant_file)
    experts = _largest(text, _EXPERTS) or _largest(_sub(text, "ffn_config"), _EXPERTS)
    top_k = _largest(text, _TOP_K) or _largest(_sub(text, "ffn_config"), _TOP_K)
    facts: dict[str, Any] = {
        "num_experts": experts or 0,
        "is_moe": bool(experts and experts > 1),
        "num_shared_experts": _largest(text, _SHARED) or (1 if _largest(text, _SHARED_SIZE) else 0),
        "shared_expert_intermediate_size": _largest(text, _SHARED_SIZE),
        "moe_intermediate_size": _largest(text, _MOE_SIZE),
        "first_k_dense": _largest(text, ("first_k_dense_replace", "num_dense_layers")) or 0,
        "quant": quantization or quant_name(quant_config),
        "quant_block": _block(quant_config),
        "quant_config": dict(quant_config) if quant_config else None,
        "quant_ignored": ignored_modules(quant_config),
        "config": dict(config),
    }
    if architectures := config.get("architectures") or text.get("architectures"):
        facts["architecture"] = architectures[0] if isinstance(architectures, list) else architectures
    if facts["is_moe"] and facts["moe_intermediate_size"] is None:
        facts["moe_intermediate_size"] = _largest(text, ("intermediate_size",))
    if top_k:
        facts["top_k"] = top_k
    for name, keys in {
        "model_type": ("model_type",),
        "intermediate_size": ("intermediate_size",),
        "hidden_size": ("hidden_size", "n_embd"),
        "num_layers": ("num_hidden_layers", "n_layer", "num_layers"),
        "dtype": ("dtype", "torch_dtype"),
    }.items():
        value = next((part[k] for part in (text, config) for k in keys if part.get(k) is not None), None)
        if value is not None:
            facts[name] = str(value).removeprefix("torch.") if name == "dtype" else value
    facts["quant_kind"] = quant_kind(facts["quant"], quant_config)
    return facts


def quant_dict(config: Mapping[str, Any], quant_file: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    """The quantization section of a checkpoint: config.json's, else ModelOpt's own file; empty when there is none."""
    for part in (config, text_config(config)):
        for key in ("quantization_config", "compression_config"):
            found = part.get(key)
            if isinstance(found, Mapping) and found:
                return found
    inner = (quant_file or {}).get("quantization")
    if isinstance(inner, Mapping) and inner:
        return {"quant_method": "modelopt", **inner}
    return {}


def quant_name(quant_config: Mapping[str, Any]) -> str | None:
    """SGLang's name of the method; ModelOpt's is split by its algorithm as SGLang does."""
    method = str(quant_config.get("quant_method") or "").lower()
    if not method:
        return None
    if method.startswith("modelopt"):
        algo = str(quant_config.get("quant_algo") or "").upper()
        if "FP4" in algo:
            return "modelopt_fp4"
        if algo == "FP8":
            return "modelopt_fp8"
        return "modelopt_mixed" if algo else method
    return method


def quant_kind(name: str | None, quant_config: Mapping[str, Any]) -> str | None:
    """What the experts' weights are, finer than the method's name where one method covers several.

    compressed-tensors is split into ct_fp8, ct_int8, ct_wna16, ct_w4a8, ct_nvfp4; quark into quark_fp8, quark_mxfp4,
    quark_int8. `unquantized` for none; None when a layout is not known.
    """
    if name is None:
        return "unquantized"
    if quant_config.get(
        "moe_quant_algo"
    ):  # experts of another kind than the rest; which releases know it differs
        return None
    if name == "compressed-tensors":
        return _compressed_tensors_kind(quant_config)
    if name == "quark":
        weights = str(_sub(_sub(quant_config, "global_quant_config"), "weight").get("dtype") or "").lower()
        return next((kind for word, kind in _QUARK.items() if word in weights), None)
    return name.replace("-", "_")


_QUARK = {"fp4": "quark_mxfp4", "fp8": "quark_fp8", "int8": "quark_int8"}


def _compressed_tensors_kind(quant_config: Mapping[str, Any]) -> str | None:
    kinds = set()
    for group in _sub(quant_config, "config_groups").values():
        weights, inputs = _sub(group, "weights"), _sub(group, "input_activations")
        key = (str(weights.get("type")), weights.get("num_bits"), bool(inputs))
        kinds.add(_COMPRESSED.get(key))
    return kinds.pop() if len(kinds) == 1 else None


_COMPRESSED: Mapping[tuple[str, Any, bool], str] = {
    ("float", 8, True): "ct_fp8",
    ("int", 8, True): "ct_int8",
    ("int", 4, False): "ct_wna16",
    ("int", 8, False): "ct_wna16",
    ("int", 4, True): "ct_w4a8",
    ("float", 4, True): "ct_nvfp4",
    ("float", 4, False): "ct_nvfp4",
}


def ignored_modules(quant_config: Mapping[str, Any]) -> list[str]:
    """Module names and patterns that the checkpoint leaves unquantized."""
    names: list[str] = []
    for key in _IGNORED:
        value = quant_config.get(key)
        if isinstance(value, list):
            names += [str(v) for v in value]
    return names


def is_ignored(module: str, patterns: Iterable[str]) -> bool:
    """Whether a module path is left unquantized by a list of names, prefixes, globs or ``re:`` patterns."""
    names = module.split(".")
    above = {".".join(names[:end]) for end in range(1, len(names) + 1)}
    plain, marked = _sorted_out(tuple(patterns))
    if not plain.isdisjoint(above):
        return True
    for pattern in marked:
        if pattern.startswith("re:"):
            with contextlib.suppress(re.error):
                if re.match(pattern[3:], module):
                    return True
        elif fnmatch.fnmatch(module, pattern):
            return True
    return False


@functools.lru_cache(maxsize=8)
def _sorted_out(patterns: tuple[str, ...]) -> tuple[frozenset[str], tuple[str, ...]]:
    """All of them as names, and those that are more than a name: one list is asked for each layer of a model."""
    marked = (p for p in patterns if p.startswith("re:") or _MARKS.search(p))
    return frozenset(p.rstrip(".") for p in patterns), tuple(marked)


def _largest(part: Mapping[str, Any], keys: Iterable[str]) -> int | None:
    for key in keys:
        value = part.get(key)
        if isinstance(value, list) and value and all(isinstance(v, int) for v in value):
            value = max(value)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def _sub(part: Any, key: str) -> Mapping[str, Any]:
    inner = part.get(key) if isinstance(part, Mapping) else None
    return inner if isinstance(inner, Mapping) else {}


def _block(quant_config: Mapping[str, Any]) -> list[int] | None:
    block = quant_config.get("weight_block_size")
    ok = isinstance(block, list) and len(block) == 2 and all(isinstance(b, int) and b > 0 for b in block)
    return list(block) if ok and isinstance(block, list) else None

"""From a built model to facts: which runner and method its MoE layers got, and how many bytes its weights take."""

from __future__ import annotations

from typing import Any

from sglang_guards.build import forward
from sglang_guards.build.model import Layers

#: Words in a parameter's name -> kind of weight, first match wins.
_KINDS = (
    ("experts", ("experts.", ".experts")),
    ("embeddings", ("embed", "lm_head", "wte")),
    ("vision", ("visual.", "vision", "audio")),
    ("attention", ("attn", "attention", "indexer")),
)


def moe_layers(model: Any) -> tuple[Layers, ...]:
    """The MoE layers of a model, those of one kind together, in the order in which they come."""
    from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE

    found: dict[tuple[Any, ...], list[Any]] = {}
    for name, module in model.named_modules():
        if not isinstance(module, FusedMoE):
            continue
        method = getattr(module, "quant_method", None)
        acting = acting_method(module, method)
        key = (type(module).__name__, method_name(method, acting), runner_name(acting), *_sizes(module))
        made = _runner(acting) is not None
        missing = "" if made else forward.needs_runner(acting, module)
        passed_by = made and forward.may_pass_by_runner(acting, module)
        entry = found.setdefault(key, [0, name, missing or "", passed_by])
        entry[0] += 1
    return tuple(
        Layers(
            kind=key[0],
            method=key[1],
            runner=key[2],
            count=count,
            runner_read_at=missing,
            runner_certain=not passed_by,
            first=first,
            experts=key[3],
            fused_shared_experts=key[4],
            top_k=key[5],
        )
        for key, (count, first, missing, passed_by) in found.items()
    )


def _sizes(module: Any) -> tuple[int | None, int | None, int | None]:
    return (
        _int(getattr(module, "num_local_experts", None)),
        _int(getattr(module, "num_fused_shared_experts", None)),
        _int(getattr(module, "top_k", None)),
    )


def _int(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def acting_method(module: Any, method: Any) -> Any:
    """What computes: compressed-tensors and Quark keep it on the layer as a scheme that their method asks."""
    scheme = getattr(module, "scheme", None)
    return scheme if scheme is not None and hasattr(scheme, "apply_weights") else method


def method_name(method: Any, acting: Any) -> str:
    """``Fp8MoEMethod``; with a scheme ``CompressedTensorsFusedMoEMethod (…Scheme)``."""
    name = type(method).__name__
    return name if acting is method else f"{name} ({type(acting).__name__})"


def runner_name(method: Any) -> str:
    """SGLang's name of the runner backend, lower case; "" where the method has no runner."""
    runner = _runner(method)
    if runner is None:
        return ""
    backend = getattr(runner, "runner_backend", None)
    return str(getattr(backend, "value", backend)).lower()


def _runner(method: Any) -> Any:
    """What the method's forward runs: since 0.5.13 unquantized experts keep AITER's beside the one for all others."""
    own = getattr(method, "_aiter_runner", None)
    return own if own is not None else getattr(method, "runner", None)


def weight_bytes(model: Any) -> tuple[int, dict[str, int]]:
    """Bytes of all parameters and buffers, each storage once, and by kind."""
    kinds: dict[str, int] = {}
    seen: set[int] = set()
    for named in (model.named_parameters(), model.named_buffers()):
        for name, tensor in named:
            if id(tensor) in seen or tensor.device.type != "meta":
                continue
            seen.add(id(tensor))
            kind = next((k for k, words in _KINDS if any(w in name for w in words)), "other")
            kinds[kind] = kinds.get(kind, 0) + tensor.numel() * tensor.element_size()
    return sum(kinds.values()), kinds

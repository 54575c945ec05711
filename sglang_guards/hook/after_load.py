"""What is really true once the model is loaded, logged once per model in the scheduler process of the first rank.

Arguments alone cannot always tell which runner each layer gets; the loaded modules can. Costs one walk over the
modules and never raises.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sglang_guards import sglang_compat
from sglang_guards.log import info, warn

_FUSION_MODULE = "sglang.srt.layers.flashinfer_comm_fusion"


def targets() -> Mapping[str, Mapping[str, Callable[..., None]]]:
    """Module -> attribute -> AFTER hook, in 0.5.11 and later. None of the modules is imported for it."""
    return {
        "sglang.srt.model_executor.model_runner": {
            "ModelRunner.load_model": after_load_model,
            "ModelRunner.init_lora_manager": after_lora,
        },
        _FUSION_MODULE: {"pre_initialize_workspaces": after_workspaces},
    }


def after_load_model(result: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
    """The target or the draft is loaded; with LoRA the target's layers are wrapped later."""
    _safely(lambda: None if _waits_for_lora(runner) else _confirm_fused_sum(runner))


def after_lora(result: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
    """The target's layers are wrapped by LoRA."""
    _safely(lambda: _confirm_fused_sum(runner))


def after_workspaces(result: Any, *args: Any, **kwargs: Any) -> None:
    """FlashInfer's all-reduce workspaces were created, or SGLang has given them up."""
    _safely(_confirm_workspace)


def _safely(step: Callable[[], None]) -> None:
    try:
        step()
    except Exception as error:
        warn("sglang-guards could not confirm what was loaded: %s: %s", type(error).__name__, error)


def _is_draft(runner: Any) -> bool:
    return bool(getattr(runner, "is_draft_worker", False))


def _waits_for_lora(runner: Any) -> bool:
    view = sglang_compat.view(runner.server_args)
    return not _is_draft(runner) and bool(getattr(view, "enable_lora", False))


def _confirm_fused_sum(runner: Any) -> None:
    if getattr(runner, "tp_rank", 0) or not sglang_compat.worker_flag(
        runner.server_args, "enable_fused_moe_sum_all_reduce"
    ):
        return
    layers = [read(module) for module in moe_modules(runner.model.modules())]
    who = "draft" if _is_draft(runner) else "target"
    info("sglang-guards: %s: %s", who, sentence(layers, sglang_compat.platform()))


@dataclass(frozen=True)
class Layer:
    """One loaded MoE layer: its runner's name, experts per token, and whether its weights are int4/int8-only."""

    runner: str
    top_k: int | None
    weight_only: bool

    def fuses(self, platform: str) -> bool:
        """Whether the gate opens for this layer."""
        on_gpu = platform in ("cuda", "hip", "musa", "xpu")
        return on_gpu and self.runner == "triton" and not self.weight_only and (self.top_k or 0) > 2


def moe_modules(modules: Iterable[Any]) -> list[Any]:
    """The FusedMoE layers of a model, each once; nothing of SGLang is imported for that."""
    layer_module = sys.modules.get("sglang.srt.layers.moe.fused_moe_triton.layer")
    fused_moe = getattr(layer_module, "FusedMoE", None)
    if fused_moe is None:
        return []
    return list({id(m): m for m in modules if isinstance(m, fused_moe)}.values())


def read(module: Any) -> Layer:
    """The runner that a loaded FusedMoE layer got; `unknown` where it keeps none."""
    method = getattr(module, "quant_method", None)
    scheme = getattr(module, "scheme", None)
    places = (method, scheme, getattr(method, "gpu_method", None), getattr(method, "kernel", None))
    runner = next((r for r in (getattr(place, "runner", None) for place in places) if r is not None), None)
    backend = getattr(runner, "runner_backend", None)
    name = str(getattr(backend, "value", backend) or "unknown").lower()
    top_k = getattr(getattr(module, "moe_runner_config", None), "top_k", None) or getattr(
        module, "top_k", None
    )
    owners = " ".join(type(place).__name__ for place in places if place is not None)
    return Layer(name, top_k if isinstance(top_k, int) else None, "WNA16" in owners)


def sentence(layers: list[Layer], platform: str) -> str:
    """``fused MoE sum active on 48 of 48 MoE layers (triton)`` or why it is not."""
    if not layers:
        return "fused MoE sum has no effect: no MoE layers"
    active = sum(layer.fuses(platform) for layer in layers)
    runners = ", ".join(f"{name} ×{n}" if n != len(layers) else name for name, n in _runners(layers))
    if active:
        return f"fused MoE sum active on {active} of {len(layers)} MoE layers ({runners})"
    return f"fused MoE sum has no effect: active on 0 of {len(layers)} MoE layers ({runners})"


def _runners(layers: list[Layer]) -> list[tuple[str, int]]:
    return Counter(layer.runner for layer in layers).most_common()


def _confirm_workspace() -> None:
    module = sys.modules[_FUSION_MODULE]
    unavailable = getattr(module, "is_flashinfer_allreduce_unavailable", None)
    if unavailable is None:
        return
    if unavailable():
        warn(
            "sglang-guards: FlashInfer all-reduce fusion is off: its workspace could not be created; "
            "SGLang's warning above says why. The server runs unfused."
        )
    else:
        info("sglang-guards: FlashInfer all-reduce fusion: workspace created")

"""Does it fit: SGLang's own arithmetic from the weights of a rank to the tokens that its KV cache can hold.

The free memory that SGLang would measure is answered with the GPU's memory less the weights. CUDA's own context, NCCL
and the loader's temporaries are not in it, so what does not fit here does not fit there.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sglang_guards.build import process_group

GIB = 2**30
#: Args that keep weights off the GPU, or change them after the load, when they are set to something.
_ELSEWHERE = ("cpu_offload_gb", "kt_weight_path", "offload_group_size", "torchao_config")


@dataclass(frozen=True)
class Room:
    """What is left for the KV cache of a rank."""

    kv_bytes: int
    kv_tokens: int


def weights_are_final(view: Any, model_config: Any) -> bool:
    """Whether the weights keep the size that they are made with: not quantized on the way in, not kept elsewhere."""
    for name in _ELSEWHERE:
        value = getattr(view, name, None)
        if value and not (isinstance(value, (int, float)) and value < 0):
            return False
    quantized = getattr(model_config, "quantization", None)
    shipped = getattr(model_config.hf_config, "quantization_config", None)
    compression = getattr(model_config.hf_config, "compression_config", None)
    return quantized is None or bool(shipped) or bool(compression) or _has_quantization_file(model_config)


def _has_quantization_file(model_config: Any) -> bool:
    from pathlib import Path

    return (Path(str(model_config.model_path)) / "hf_quant_config.json").is_file()


def draft_layers(view: Any, draft_config: Any) -> int | None:
    """`eagle_draft_num_layers`, which ModelRunner's constructor reads from the draft's config (0.5.14 and 0.5.15)."""
    if not view.speculative_draft_model_path:
        return None
    built_in = draft_config.num_nextn_predict_layers
    own = max(draft_config.num_hidden_layers, draft_config.num_attention_layers)
    return int(own if built_in is None else built_in)


def room(runner: Any, view: Any, total_bytes: int, weights_bytes: int) -> Room:
    """SGLang's own pool sizes; raises what SGLang raises when nothing is left."""
    import torch

    with torch.device("cpu"), _free_memory((total_bytes - weights_bytes) / GIB):
        _prepare(runner, view)
        total = total_bytes / GIB
        profile = getattr(type(runner), "profile_max_num_token", None)
        if profile is not None:  # up to 0.5.11
            tokens = int(runner.profile_max_num_token(total))
            return Room(0, tokens)
        owner = runner
        if hasattr(type(runner), "init_kv_cache_configurator"):  # 0.5.16 and later
            runner.init_kv_cache_configurator()
            owner = runner.kv_cache_configurator
        available = int(owner._profile_available_bytes(total))
        from sglang.srt.model_executor.pool_configurator import create_memory_pool_configurator

        sizes = create_memory_pool_configurator(owner).calculate_pool_sizes(available, runner.page_size)
        return Room(available, int(sizes.max_total_num_tokens))


def _prepare(runner: Any, view: Any) -> None:
    """What ModelRunner sets between the load of its model and its memory pools."""
    module: Any = sys.modules["sglang.srt.model_executor.model_runner"]
    runner.mem_fraction_static = view.mem_fraction_static
    resolve = getattr(module, "resolve_layer_indices", None)
    if resolve is not None:
        values = {
            "model": runner.model,
            "model_config": runner.model_config,
            "is_draft_worker": runner.is_draft_worker,
            "spec_algorithm": runner.spec_algorithm,  # up to 0.5.21
        }
        runner.layer_info = process_group.call(resolve, values)
    else:
        layers = runner.model_config.num_hidden_layers
        runner.start_layer = getattr(runner.model, "start_layer", 0)
        runner.end_layer = getattr(runner.model, "end_layer", layers)
        runner.num_effective_layers = runner.end_layer - runner.start_layer
    if hasattr(type(runner), "init_spec_aux_hidden_state"):
        runner.init_spec_aux_hidden_state()
    runner.configure_kv_cache_dtype()


@contextlib.contextmanager
def _free_memory(gib: float) -> Iterator[None]:
    """SGLang's question for free memory answered with this figure, in whichever module it was imported."""
    changed: list[tuple[Any, Any]] = []
    modules: list[tuple[str, Any]] = list(sys.modules.items())
    for name, module in modules:
        if name.startswith("sglang.") and hasattr(module, "get_available_gpu_memory"):
            changed.append((module, module.get_available_gpu_memory))
            module.get_available_gpu_memory = lambda *args, **kwargs: gib
    try:
        yield
    finally:
        for module, original in changed:
            module.get_available_gpu_memory = original

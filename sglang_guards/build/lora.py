"""LoRA on the built model: SGLang's own manager wraps the layers and cuts its pool of adapters.

Adapters that are not on this machine are left out; what they would add to shapes is then what the flags say.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sglang_guards.build import process_group, stand_ins


def is_wanted(view: Any) -> bool:
    """Whether the launch serves adapters."""
    return bool(getattr(view, "enable_lora", None) or getattr(view, "lora_paths", None))


def wrap(runner: Any, view: Any) -> None:
    """Make the manager as ModelRunner does. Raises what SGLang raises, or CannotTell where the shapes are unknown."""
    from sglang.srt.lora.lora_manager import LoRAManager

    paths = getattr(view, "lora_paths", None) or None
    rank, modules = getattr(view, "max_lora_rank", None), getattr(view, "lora_target_modules", None)
    if paths is not None and not all(_is_here(path) for path in paths):
        paths = None
        if rank is None or modules is None:
            raise stand_ins.CannotTell("the adapters are not on this machine, and only they say their shapes")
    values = {
        "base_model": runner.model,
        "base_hf_config": runner.model_config.hf_config,
        "max_loras_per_batch": view.max_loras_per_batch,
        "load_config": stand_ins.value_of("ModelRunner.load_config"),
        "dtype": runner.dtype,
        "server_args": runner.server_args,
        "lora_backend": view.lora_backend,
        "tp_size": runner.tp_size,
        "tp_rank": runner.tp_rank,
        "max_lora_rank": rank,
        "target_modules": modules,
        "lora_paths": paths,
    }
    process_group.call(LoRAManager, values)


def _is_here(adapter: Any) -> bool:
    return (Path(str(getattr(adapter, "lora_path", adapter))) / "adapter_config.json").is_file()

"""A world of ranks that exist in name only, so that SGLang's own initialisation makes its groups in one process."""

from __future__ import annotations

import inspect
from typing import Any

from sglang_guards.build.model import Rank


def parallel_sizes(view: Any) -> dict[str, int]:
    """Sizes as the scheduler hands them to `initialize_model_parallel`, by its keyword names up to 0.5.19."""

    def size(name: str) -> int:
        value = getattr(view, name, None)
        return value if isinstance(value, int) and value > 0 else 1

    return {
        "tensor_model_parallel_size": size("tp_size"),
        "pipeline_model_parallel_size": size("pp_size"),
        "expert_model_parallel_size": size("ep_size"),
        "attention_data_parallel_size": size("dp_size") if getattr(view, "enable_dp_attention", False) else 1,
        "attention_context_model_parallel_size": size("attn_cp_size"),
        "moe_data_model_parallel_size": size("moe_dp_size"),
        "decode_context_parallel_size": size("dcp_size"),
    }


def publish(server_args: Any, rank: Rank) -> None:
    """Make the resolved arguments the process's own, as the scheduler does first."""
    try:
        from sglang.srt import runtime_context
    except ImportError:  # up to 0.5.11
        runtime_context = None
    if hasattr(runtime_context, "publish"):
        extra = {}
        if hasattr(runtime_context, "SpawnRanks"):  # 0.5.20 and later
            extra["ranks"] = runtime_context.SpawnRanks(
                world_rank=rank.rank, dp_rank=None, gpu_id=rank.tp_rank
            )
        runtime_context.publish(server_args, role="scheduler", **extra)
        return
    from sglang.srt.server_args import set_global_server_args_for_scheduler

    set_global_server_args_for_scheduler(server_args)


def open_world(server_args: Any, view: Any, rank: Rank) -> None:
    """SGLang's process groups as this rank sees them. Nothing is sent."""
    import torch.distributed as dist
    from sglang.srt.distributed import parallel_state
    from torch.testing._internal.distributed.fake_pg import FakeStore

    sizes = parallel_sizes(view)
    world = sizes["tensor_model_parallel_size"] * sizes["pipeline_model_parallel_size"]
    dist.init_process_group("fake", rank=rank.rank, world_size=world, store=FakeStore())
    real_new_group = dist.new_group
    dist.new_group = lambda ranks=None, *args, **kwargs: real_new_group(ranks, backend="fake")
    _without_transports(parallel_state.GroupCoordinator)
    parallel_state.init_distributed_environment(
        world_size=world,
        rank=rank.rank,
        local_rank=rank.tp_rank,
        backend="fake",
        distributed_init_method="fake://",
    )
    call(parallel_state.initialize_model_parallel, sizes)


def _without_transports(coordinator: Any) -> None:
    """Every transport off: they open sockets and shared memory when a group is made."""
    original = coordinator.__init__
    signature = inspect.signature(original)

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs)
        for name in bound.arguments:
            if name.startswith("use_"):
                bound.arguments[name] = False
        original(*bound.args, **bound.kwargs)

    coordinator.__init__ = init


def call(function: Any, values: dict[str, Any]) -> Any:
    """Call with those of the values that this release's function takes."""
    known = inspect.signature(function).parameters
    return function(**{name: value for name, value in values.items() if name in known})


def initialize(server_args: Any, model_config: Any) -> None:
    """MoE, GEMM and DP-attention settings, as the scheduler makes them between its groups and its model."""
    from sglang.srt.layers import dp_attention
    from sglang.srt.layers.moe import initialize_moe_config

    # 0.5.19 reads them from the published context and takes no arguments.
    call(initialize_moe_config, {"server_args": server_args})
    for module, name in (
        ("fp8_utils", "initialize_fp8_gemm_config"),
        ("fp4_utils", "initialize_fp4_gemm_config"),
        ("unquant", "initialize_bf16_gemm_config"),
    ):
        function = _optional(f"sglang.srt.layers.quantization.{module}", name)
        if function is not None:
            call(function, {"server_args": server_args})
    values = {"server_args": server_args, "model_config": model_config}
    call(dp_attention.initialize_dp_attention, values)
    for module, name in (
        ("dp_attention", "init_dp_gathered_buffer"),
        ("layernorm_sp", "initialize_layernorm_sp"),
    ):
        function = _optional(f"sglang.srt.layers.{module}", name)
        if function is not None:
            call(function, values)


def _optional(module: str, name: str) -> Any:
    import importlib

    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None

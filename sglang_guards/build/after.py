"""What SGLang does between the construction of its models and the first request, as far as it needs no kernel.

Each step is SGLang's own code on the built model. A step that meets a stand-in, or an operation that the meta device
cannot do, ends there and says nothing.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

from sglang_guards.build import draft, lora, process_group, stand_ins
from sglang_guards.build.model import Rank

#: A step: what it is called, when the operator would have met its error, and the step itself.
Step = tuple[str, str, Callable[[], Any]]


def steps(server_args: Any, view: Any, model_config: Any, model: Any, rank: Rank) -> Iterator[Step]:
    """In SGLang's order."""
    runner = stand_in_runner(server_args, view, model_config, model, rank)
    yield from _weights(model)
    if runner is not None:
        yield "the check of quantized MoE layers", "load", lambda: _check_moe(runner)
        yield "the attention backend", "load", lambda: _attention(runner)
        yield "the wrapper of the attention backend", "load", lambda: _attention_wrapper(runner)
        if rank.model == "draft" and draft.is_eagle_like(view) and draft.index(view) is None:
            yield (
                "the draft's decode backend",
                "load",
                lambda: _draft_factory(runner, view).create_decode_backend(),
            )
            yield (
                "the draft's extend backend",
                "load",
                lambda: _draft_factory(runner, view).create_draft_extend_backend(),
            )
    if rank.model == "target" and getattr(view, "enable_two_batch_overlap", False):
        yield "two-batch overlap", "forward", lambda: _two_batch_overlap(model)
    if runner is not None and rank.model == "target" and lora.is_wanted(view):
        yield "LoRA", "load", lambda: lora.wrap(runner, view)  # last: it puts wrappers in the layers' places


def _weights(model: Any) -> Iterator[Step]:
    """`process_weights_after_loading` of the first layer of each kind."""
    seen = set()
    for name, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        function = getattr(method, "process_weights_after_loading", None)
        if function is None:
            continue
        kind = (type(module), type(method), type(getattr(module, "scheme", None)))
        if kind in seen:
            continue
        seen.add(kind)
        yield f"the weights of {name}", "load", functools.partial(function, module)


def reserve_positions(server_args: Any, model_config: Any, model: Any) -> None:
    """ModelRunner lengthens the tables of rotary positions beyond the context once a model is loaded."""
    from sglang.srt.utils import common

    # 0.5.23 reads the arguments from the published context.
    values = {"model": model, "server_args": server_args, "model_config": model_config}
    process_group.call(common.reserve_rope_cache_for_long_sequences, values)


def stand_in_runner(server_args: Any, view: Any, model_config: Any, model: Any, rank: Rank) -> Any:
    """SGLang's ModelRunner without its constructor: what is known is real, everything else a stand-in."""
    try:
        from sglang.srt.model_executor.model_runner import ModelRunner
    except Exception:  # a module of this release that cannot be imported here
        return None

    class Runner(ModelRunner):  # type: ignore[misc]
        def __init__(self) -> None:
            """Its own would open groups and load weights."""

        def __getattr__(self, name: str) -> Any:
            # Up to 0.5.12 the memo is there once it is filled.
            if name.startswith("__") or name == "_linear_attn_registry_cache":
                raise AttributeError(name)
            return stand_ins.value_of(f"ModelRunner.{name}")

    runner = Runner()
    for name, value in _known(server_args, view, model_config, model, rank).items():
        try:
            setattr(runner, name, value)
        except AttributeError:  # a property of this release
            continue
    _name_attention_backends(runner)
    return runner


def _name_attention_backends(runner: Any) -> None:
    """Since 0.5.18 ModelRunner notes the names of its attention backends before it makes them."""
    module = sys.modules.get("sglang.srt.model_executor.model_runner_components.attention_backend_setup")
    resolve = getattr(module, "resolve_attention_backend_strs", None)
    if resolve is None:
        return
    try:
        resolved = resolve(model_runner=runner)
    except (Exception, stand_ins.CannotTell):  # the names stay stand-ins
        return
    runner.prefill_attention_backend_str = resolved.prefill
    runner.decode_attention_backend_str = resolved.decode


def _known(server_args: Any, view: Any, model_config: Any, model: Any, rank: Rank) -> dict[str, Any]:
    from sglang.srt.configs.model_config import AttentionArch
    from sglang.srt.distributed import parallel_state
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    sizes = process_group.parallel_sizes(view)
    is_draft = rank.model == "draft"
    known = {
        "server_args": server_args,
        "model_config": model_config,
        "model": model,
        "device": "cuda",
        "gpu_id": rank.tp_rank,
        "tp_rank": rank.tp_rank,
        "tp_size": sizes["tensor_model_parallel_size"],
        "pp_rank": rank.pp_rank,
        "pp_size": sizes["pipeline_model_parallel_size"],
        "dp_size": sizes["attention_data_parallel_size"],
        "moe_ep_size": sizes["expert_model_parallel_size"],
        "moe_dp_size": sizes["moe_data_model_parallel_size"],
        "attn_cp_size": sizes["attention_context_model_parallel_size"],
        "is_draft_worker": is_draft,
        "dtype": model_config.dtype,
        "page_size": getattr(view, "page_size", None) or 1,
        "spec_algorithm": SpeculativeAlgorithm.from_string(getattr(view, "speculative_algorithm", None)),
        "use_mla_backend": model_config.attention_arch == AttentionArch.MLA,
        "draft_model_idx": draft.index(view) if is_draft else None,
        "init_new_workspace": False,
        "draft_attention_backend": getattr(view, "speculative_draft_attention_backend", None)
        if is_draft
        else None,
    }
    # 0.5.16 to 0.5.20 keep the sizes in an object of their own.
    known["ps"] = stand_ins.value_of("ModelRunner.ps")
    for name in ("tp_rank", "tp_size", "pp_rank", "pp_size", "moe_ep_size", "moe_dp_size", "attn_cp_size"):
        setattr(known["ps"], name, known[name])
    for name in ("tp_group", "pp_group"):
        known[name] = getattr(parallel_state, f"get_{name}")()
    known["ps"].attn_dp_size = sizes["attention_data_parallel_size"]
    module: Any = sys.modules.get("sglang.srt.model_executor.model_runner")
    if hasattr(module, "_UNSET"):  # up to 0.5.15: a memo that the constructor empties
        known["_linear_attn_registry_cache"] = module._UNSET
    resolve = getattr(module, "resolve_sliding_window_size", None)
    if resolve is not None:
        known["sliding_window_size"] = resolve(model, model_config)
    for name in ("is_hybrid_swa", "is_hybrid_swa_compress", "attention_chunk_size", "is_multimodal"):
        if hasattr(model_config, name):
            known[name] = getattr(model_config, name)
    return known


def _check_moe(runner: Any) -> None:
    """SGLang's own check of shapes; it reads sizes from the runner or from its `ps`."""
    function = type(runner).__dict__.get("check_quantized_moe_compatibility") or getattr(
        type(runner), "check_quantized_moe_compatibility", None
    )
    if function is not None:
        function(runner)


def _attention(runner: Any) -> None:
    function = getattr(type(runner), "_get_attention_backend", None)
    if function is not None:
        function(runner)
        return
    module = sys.modules.get("sglang.srt.model_executor.model_runner_components.attention_backend_setup")
    make = getattr(module, "get_attention_backend", None)
    if make is not None:
        make(model_runner=runner)


def _attention_wrapper(runner: Any) -> None:
    """What hybrid models ask of the backend, whatever it is: it is called after the backend is made."""
    from sglang.srt.layers.attention import attention_registry

    attention_registry.attn_backend_wrapper(runner, stand_ins.value_of("the attention backend"))


def _draft_factory(runner: Any, view: Any) -> Any:
    from sglang.srt.speculative import draft_utils

    values = {
        "server_args": runner.server_args,
        "draft_model_runner": runner,
        "topk": getattr(view, "speculative_eagle_topk", None) or 1,
        "speculative_num_steps": getattr(view, "speculative_num_steps", None) or 1,
    }
    known = inspect.signature(draft_utils.DraftBackendFactory.__init__).parameters
    return draft_utils.DraftBackendFactory(**{k: v for k, v in values.items() if k in known})


def _two_batch_overlap(model: Any) -> None:
    """The strategy of the model's own decoder layers, where its forward asks for one."""
    module: Any = sys.modules[type(model).__module__]
    text = inspect.getsource(module)
    if "model_forward_maybe_tbo" not in text and "init_new_tbo" not in text:
        return
    from sglang.srt.batch_overlap.operations_strategy import OperationsStrategy
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    layers = getattr(getattr(model, "model", None), "layers", None)
    if layers:
        # A prefill: some classes overlap nothing else, and a class without a strategy fails for every mode.
        OperationsStrategy.init_new_tbo([layers[len(layers) - 1]], ForwardMode.EXTEND)

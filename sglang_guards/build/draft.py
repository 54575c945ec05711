"""The draft model of a launch, under the arguments and contexts in which its worker builds it."""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Iterator
from typing import Any

#: Algorithms without a model of their own.
_NO_MODEL = frozenset({"", "none", "ngram", "external_corpus"})
#: Algorithms whose workers build the draft under the speculative MoE settings (`eagle_worker_v2` and its kin).
_EAGLE_LIKE = frozenset({"eagle", "eagle3", "nextn", "standalone", "frozen_kv_mtp"})


def algorithm(view: Any) -> str:
    """The speculative algorithm, lower case; "" without one."""
    return str(getattr(view, "speculative_algorithm", None) or "").lower()


def exists(view: Any) -> bool:
    """Whether a draft model is built at all."""
    return algorithm(view) not in _NO_MODEL


def is_eagle_like(view: Any) -> bool:
    """Whether the draft's worker is `eagle_worker_v2` or one made like it."""
    return algorithm(view) in _EAGLE_LIKE


def config(server_args: Any, view: Any) -> Any:
    """SGLang's ModelConfig of the draft, as its worker makes it."""
    from sglang.srt.configs.model_config import ModelConfig

    return ModelConfig.from_server_args(
        server_args,
        model_path=getattr(view, "speculative_draft_model_path", None),
        model_revision=getattr(view, "speculative_draft_model_revision", None),
        is_draft_model=True,
    )


def index(view: Any) -> int | None:
    """Which of several draft layers: models with one MTP layer per step build one model for each."""
    return 0 if getattr(view, "enable_multi_layer_eagle", False) else None


@contextlib.contextmanager
def contexts(view: Any, model_config: Any) -> Iterator[None]:
    """The contexts that this release's draft worker is in while it builds its model; each exists in some releases."""
    with contextlib.ExitStack() as stack:
        if is_eagle_like(view):
            stack.enter_context(_tp_context(view, model_config))
            for module, name in (
                ("sglang.srt.speculative.spec_utils", "draft_pp_context"),
                ("sglang.srt.layers.moe.utils", "speculative_moe_backend_context"),
                ("sglang.srt.layers.moe.utils", "speculative_moe_a2a_backend_context"),
            ):
                stack.enter_context(_context(module, name))
        stack.enter_context(_context("sglang.srt.layers.moe.utils", "draft_model_build_scope"))
        yield


def _context(module: str, name: str) -> Any:
    function = getattr(importlib.import_module(module), name, None)
    return contextlib.nullcontext() if function is None else function()


def _tp_context(view: Any, model_config: Any) -> Any:
    """An EAGLE3 draft beside DP attention runs on the attention's TP group."""
    from sglang.srt.speculative import spec_utils

    function = spec_utils.draft_tp_context
    parameters = inspect.signature(function).parameters
    if "layout" in parameters:  # 0.5.23
        return function(_layout(view, model_config))
    if not (getattr(view, "enable_dp_attention", False) and algorithm(view) == "eagle3"):
        return contextlib.nullcontext()
    if "tp_group" not in parameters:  # 0.5.22
        return function(True)
    extra = {"owns_attention": True} if "owns_attention" in parameters else {}  # 0.5.21
    return function(_attention_group(), **extra)


def _layout(view: Any, model_config: Any) -> Any:
    from sglang.srt.speculative import draft_parallel
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    kind = SpeculativeAlgorithm.from_string(view.speculative_algorithm)
    return draft_parallel.resolve_draft_parallel_layout(
        draft_parallel.model_draft_parallel_spec(model_config, spec_algorithm=kind)
    )


def _attention_group() -> Any:
    from sglang.srt.layers import dp_attention

    if hasattr(dp_attention, "get_attention_tp_group"):
        return dp_attention.get_attention_tp_group()
    from sglang.srt.runtime_context import get_parallel

    return get_parallel().attn_tp_group

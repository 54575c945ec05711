"""The one place that knows how SGLang releases differ at run time (`source.py` knows how their source differs).

Each branch says which releases need it and when it can go. Everything is chosen by what exists, never by version.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

#: Validation runs once here in the launcher, after resolution and LoRA normalisation, in every release from 0.5.9.
SERVER_ARGS = "sglang.srt.server_args.ServerArgs"
VALIDATOR = "check_server_args"
VALIDATOR_TARGET = f"{SERVER_ARGS}.{VALIDATOR}"
#: The auto-enable slot: 0.5.15 and later, a pass over a view; up to 0.5.14 the end of a method of ServerArgs.
AUTO_PASS_MODULE = "sglang.srt.arg_groups.overrides"
AUTO_PASS = "_flashinfer_allreduce_fusion_auto_enable"
AUTO_METHOD = "_handle_model_specific_adjustments"


def resolve(server_args: Any) -> Any:
    """Run SGLang's resolution where it is a step of its own (0.5.19 and later) and return the resolved view."""
    if hasattr(server_args, "resolve_once"):
        server_args.resolve_once()
    return view(server_args)


def view(server_args: Any) -> Any:
    """Where resolved values are read: the record up to 0.5.18, `resolving_view` later.

    The fallback can go when 0.5.19 is the oldest supported release.
    """
    try:
        from sglang.srt.arg_groups.overrides import resolving_view
    except ImportError:
        return server_args
    return resolving_view(server_args)


def foreign_model_class(architecture: str) -> str | None:
    """The class that a plugin put in the place of SGLang's own for an architecture; imports nothing."""
    registry = getattr(sys.modules.get("sglang.srt.models.registry"), "ModelRegistry", None)
    owner = getattr(registry, "models", {}).get(architecture)
    module = str(getattr(owner, "__module__", "sglang."))
    return None if module.startswith("sglang.") else f"{module}.{getattr(owner, '__name__', owner)}"


def record(server_args_or_view: Any) -> Any:
    """The ServerArgs behind a view; a ServerArgs is returned as it is."""
    for name in ("_server_args", "server_args"):
        try:
            return object.__getattribute__(server_args_or_view, name)
        except AttributeError:
            continue
    return server_args_or_view


def fields(server_args: Any) -> tuple[str, ...]:
    """Names of all server args (of the class or a record): dataclass fields up to 0.5.19, msgspec Struct later."""
    cls = server_args if isinstance(server_args, type) else type(record(server_args))
    names = getattr(cls, "__struct_fields__", None) or getattr(cls, "__dataclass_fields__", None)
    if not names:
        names = vars(record(server_args))
    return tuple(name for name in names if not name.startswith("_"))


def defaults(server_args: Any) -> Mapping[str, Any]:
    """Default of every server arg that has a plain one."""
    cls = type(record(server_args))
    if hasattr(cls, "__struct_fields__"):
        names, values = cls.__struct_fields__, cls.__struct_defaults__
        return dict(zip(names[len(names) - len(values) :], values, strict=True))
    table = getattr(cls, "__dataclass_fields__", {})
    return {name: entry.default for name, entry in table.items()}


def model_config(server_args_or_view: Any) -> Any:
    """SGLang's own ModelConfig of the launch (memoised by SGLang), or None where there is none yet.

    `get_model_config()` up to 0.5.18; `model_config_of(view)` later.
    """
    try:
        from sglang.srt.arg_groups.overrides import model_config_of
    except ImportError:
        try:
            from sglang.srt.arg_groups.model_override_base import model_config_of
        except ImportError:
            return server_args_or_view.get_model_config()
    return model_config_of(server_args_or_view)


def write(server_args: Any, source: str, **values: Any) -> str:
    """Write a late decision the way that this release wants it; returns the name of the writer used.

    Order by capability: `declare_late_resolution` (0.5.18, 0.5.19), `declare_resolution` (0.5.20 and later),
    `override` (0.5.16, 0.5.17), plain assignment (up to 0.5.15). Raises what SGLang raises when the record is already
    published (0.5.18 and later), and RuntimeError when the decision did not stick.
    """
    target = record(server_args)
    name = _write(target, source, values)
    now = view(target)
    lost = [key for key, value in values.items() if getattr(now, key, None) != value]
    if lost:
        raise RuntimeError(f"{name} did not change {', '.join(lost)}")
    return name


def _write(target: Any, source: str, values: Mapping[str, Any]) -> str:
    try:
        from sglang.srt.arg_groups import overrides
    except ImportError:  # up to 0.5.14 there is no arg_groups.overrides
        overrides = None
    for name in ("declare_late_resolution", "declare_resolution"):
        writer = getattr(overrides, name, None)
        if writer is not None and (name != "declare_resolution" or hasattr(target, "resolve_once")):
            writer(target, source, **values)
            return name
    if callable(getattr(target, "override", None)):
        target.override(source, **values)
        return "override"
    for key, value in values.items():
        setattr(target, key, value)
    # 0.5.15 compares fields with what its passes declared when it publishes them, and dies where they differ.
    refresh = getattr(overrides, "refresh_declared_fields", None)
    if refresh is not None:
        refresh(target, list(values))
    return "setattr"


def platform() -> str:
    """cuda, hip, xpu, musa, npu, mps or cpu, as SGLang decides it: by what torch was built for and can see."""
    import torch

    if getattr(torch.version, "hip", None):
        return "hip"
    for name in ("musa", "npu", "xpu"):
        backend = getattr(torch, name, None)
        try:
            if backend is not None and backend.is_available():
                return name
        except Exception:  # noqa: BLE001 - a broken vendor plugin is not our business
            continue
    if torch.cuda.is_available() and torch.version.cuda:
        return "cuda"
    mps = getattr(torch.backends, "mps", None)
    return "mps" if mps is not None and mps.is_available() else "cpu"


def worker_flag(server_args: Any, name: str) -> bool:
    """A server arg as a worker reads it: the published config's MoE bag from 0.5.17, the record before."""
    try:
        from sglang.srt.runtime_context import get_exec

        return bool(getattr(get_exec().moe, name))
    except (ImportError, AttributeError, ValueError):
        return bool(getattr(view(server_args), name, False))

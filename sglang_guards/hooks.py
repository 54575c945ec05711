"""Where the guard attaches to SGLang, and what it does there.

The validator runs after `ServerArgs.check_server_args`, once, in the launcher, when resolution and LoRA normalisation
are done and no GPU has been touched. A fault of ours is one WARNING line; the launch goes on as without us. Every
process of SGLang imports this module, so what only the launcher needs is imported when it is called.
"""

from __future__ import annotations

import functools
import os
import pkgutil
import sys
from collections.abc import Callable, Mapping
from typing import Any

from sglang_guards import compat
from sglang_guards.log import warn
from sglang_guards.settings import from_env


def attach() -> None:
    """Register the hooks that this SGLang has targets for; a target that has moved is a WARNING line."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    _register(HookRegistry, HookType.AFTER, compat.VALIDATOR_TARGET, after_check_server_args, "no validation")
    _attach_optional(HookRegistry, HookType)


def _attach_optional(registry: Any, hook_type: Any) -> None:
    """The auto-enable list, the confirmation after load and the hotfix; each may fail alone."""
    for what, step in (
        ("auto-enable list", _attach_auto_enable),
        ("confirmation after load", _attach_confirmation),
        ("hotfix", _attach_hotfix),
    ):
        try:
            step(registry, hook_type)
        except Exception as error:
            warn("sglang-guards: the %s is not active: %s: %s", what, type(error).__name__, error)


def _attach_auto_enable(registry: Any, hook_type: Any) -> None:
    if not from_env(os.environ).auto_enable:
        return
    if _exists(compat.AUTO_PASS_TARGET):
        registry.register(compat.AUTO_PASS_TARGET, _around_auto_enable, hook_type.AROUND)
    elif _exists(compat.AUTO_METHOD_TARGET):  # up to 0.5.14
        registry.register(compat.AUTO_METHOD_TARGET, after_model_adjustments, hook_type.AFTER)


def _around_auto_enable(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    from sglang_guards import auto_enable

    return auto_enable.around_auto_enable(original, *args, **kwargs)


def after_model_adjustments(result: Any, server_args: Any, *args: Any, **kwargs: Any) -> None:
    """AFTER hook of the auto-enable slot up to 0.5.14."""
    from sglang_guards import auto_enable

    auto_enable.after_model_adjustments(server_args)


def _attach_confirmation(registry: Any, hook_type: Any) -> None:
    from sglang_guards import confirm
    from sglang_guards.late_import import when_imported

    for module, hooks in confirm.targets().items():
        when_imported(module, functools.partial(_register_late, registry, hook_type.AFTER, module, hooks))


def _register_late(registry: Any, kind: Any, module: str, hooks: Mapping[str, Callable[..., None]]) -> None:
    for name, hook in hooks.items():
        if _exists(f"{module}.{name}"):
            registry.register(f"{module}.{name}", hook, kind, source=_plugin_source())
    registry.apply_hooks()


def _plugin_source() -> Any:
    """Names us in SGLang's log; during `register` SGLang knows that itself."""
    from sglang.srt.plugins import hook_registry

    made = getattr(hook_registry, "HookSource", None)
    return made("sglang_guards", "sglang-guards") if made is not None else None


def _attach_hotfix(registry: Any, hook_type: Any) -> None:
    if not os.environ.get("SGLANG_GUARDS_HOTFIX"):
        return
    from sglang_guards import hotfix

    hotfix.apply(os.environ)


def _register(registry: Any, kind: Any, target: str, hook: Callable[..., Any], loss: str) -> None:
    if _exists(target):
        registry.register(target, hook, kind)
    else:
        warn("sglang-guards: %s: %s is not in this SGLang", loss, target)


def _exists(target: str) -> bool:
    """Whether a hook target is there. Its module is imported for that, as HookRegistry would do next."""
    owner, _, attribute = target.rpartition(".")
    try:
        return hasattr(pkgutil.resolve_name(owner), attribute)
    except (ImportError, AttributeError):
        return False


def after_check_server_args(result: Any, server_args: Any, *args: Any, **kwargs: Any) -> None:
    """AFTER hook: keeps SGLang's own result (None)."""
    _handle_fused_moe_sum_all_reduce(server_args)


def _handle_fused_moe_sum_all_reduce(server_args: Any) -> None:
    """Validate a resolved ServerArgs; raises `LaunchRefused` for errors and nothing else."""
    try:
        from sglang_guards.validate import validate

        refusal = validate(server_args, from_env(os.environ))
    except Exception as error:  # our fault must not become the server's
        warn("sglang-guards could not check this launch: %s: %s", type(error).__name__, error)
        return
    if refusal is not None:
        raise refusal


def _without_secrets(error: Exception) -> str:
    """The text of an exception of ours; nothing where even that fails."""
    try:
        from sglang_guards import redact

        return redact.text(str(error), redact.secrets_in(sys.argv, os.environ))
    except Exception:
        return "(no text)"

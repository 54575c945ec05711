"""Where the guard attaches to SGLang, and what it does there.

The validator runs after `ServerArgs.check_server_args`, once, in the launcher, when resolution and LoRA normalisation
are done and no GPU has been touched. A fault of ours is one WARNING line; the launch goes on as without us. Every
process of SGLang imports this module, so what only the launcher needs is imported when it is called.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.util
import multiprocessing
import os
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import distributions
from typing import Any

from sglang_guards import sglang_compat
from sglang_guards.hook import patching
from sglang_guards.hook.import_hooks import when_imported
from sglang_guards.log import warn
from sglang_guards.settings import from_env

#: Set by the launcher's validation and inherited by its workers.
_REACHED = "_SGLANG_GUARDS_REACHED"
#: SGLang's group of entry points.
_PLUGINS = "sglang.srt.plugins"


def attach() -> None:
    """Attach to what this SGLang has; a target that has moved is a WARNING line."""
    if not _is_worker():
        os.environ.pop(_REACHED, None)
    elif _REACHED not in os.environ:
        warn(
            "sglang-guards: this launch was not validated: its launcher did not call %s as it was wrapped; "
            "«sglang-guards doctor» tells who stands there",
            sglang_compat.VALIDATOR_TARGET,
        )
    steps = [("confirmation after load", _attach_confirmation), ("hotfix", _attach_hotfix)]
    if not _is_worker():
        steps = [("validation", _attach_validator), ("auto-enable list", _attach_auto_enable), *steps]
    for what, step in steps:
        try:
            step()
        except Exception as error:  # each may fail alone
            warn("sglang-guards: the %s is not active: %s: %s", what, type(error).__name__, error)


def _is_worker() -> bool:
    """Whether SGLang has started this process as its scheduler, detokenizer or data-parallel controller.

    Those get server args that the launcher has resolved and validated.
    """
    if multiprocessing.parent_process() is None:
        return False
    target = getattr(multiprocessing.current_process(), "_target", None)
    return str(getattr(target, "__module__", "")).startswith("sglang.srt.managers.")


def _attach_validator() -> None:
    """In place where we are the only plugin, which is cheap; beside others through SGLang's registry, which wraps
    what they put in the place of the method or of the whole class."""
    if not _exists(sglang_compat.VALIDATOR_TARGET):
        warn("sglang-guards: no validation: %s is not in this SGLang", sglang_compat.VALIDATOR_TARGET)
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    alone = not getattr(HookRegistry, "_hooks", True) and not _other_plugins()
    _say_if_not_reached()
    owner = pkgutil.resolve_name(sglang_compat.SERVER_ARGS)
    if not (alone and patching.after(owner, sglang_compat.VALIDATOR, after_check_server_args)):
        HookRegistry.register(sglang_compat.VALIDATOR_TARGET, after_check_server_args, HookType.AFTER)


def _other_plugins() -> bool:
    """Whether more than one plugin is installed. `entry_points()` would parse what all packages declare."""
    declared: set[tuple[str, str]] = set()
    for package in distributions():
        if _PLUGINS in (package.read_text("entry_points.txt") or ""):
            declared |= {
                (point.name, point.value) for point in package.entry_points if point.group == _PLUGINS
            }
    return len(declared) > 1


def _say_if_not_reached() -> None:
    """A launcher that validates in another way would pass by what is attached, without a word."""
    from sglang_guards import source

    installed = source.find()
    reached = None if installed is None else installed.ask("launcher_calls_validator")
    if reached is not None and reached.value is not True:
        said = f"{reached.detail} ({reached.where})" if reached.where else reached.detail
        warn("sglang-guards: launches may go unvalidated on this SGLang: %s", said)


def _attach_auto_enable() -> None:
    if not from_env(os.environ).auto_enable:
        return
    if _has_module(sglang_compat.AUTO_PASS_MODULE):
        when_imported(sglang_compat.AUTO_PASS_MODULE, _attach_auto_pass)
    else:  # up to 0.5.14
        _attach_auto_method()


def _has_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # not even its package
        return False


def _attach_auto_pass() -> None:
    module = sys.modules[sglang_compat.AUTO_PASS_MODULE]
    if not patching.around(module, sglang_compat.AUTO_PASS, _around_auto_enable):
        _attach_auto_method()


def _attach_auto_method() -> None:
    owner = pkgutil.resolve_name(sglang_compat.SERVER_ARGS)
    patching.after(owner, sglang_compat.AUTO_METHOD, after_model_adjustments)


def _around_auto_enable(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    ours = _auto_enable()
    return ours.around_auto_enable(original, *args, **kwargs) if ours else original(*args, **kwargs)


def after_model_adjustments(result: Any, server_args: Any, *args: Any, **kwargs: Any) -> None:
    """AFTER hook of the auto-enable slot up to 0.5.14."""
    if ours := _auto_enable():
        ours.after_model_adjustments(server_args)


def _auto_enable() -> Any:
    """The module, imported in the launcher only; None where that fails, so that SGLang keeps its own answer."""
    try:
        from sglang_guards.hook import auto_enable
    except Exception as error:
        warn("sglang-guards: the auto-enable list is not active: %s: %s", type(error).__name__, error)
        return None
    return auto_enable


def _attach_confirmation() -> None:
    from sglang_guards.hook import after_load

    for module, hooks in after_load.targets().items():
        when_imported(module, functools.partial(_confirm_in, module, hooks))


def _confirm_in(module: str, hooks: Mapping[str, Callable[..., None]]) -> None:
    for path, hook in hooks.items():
        owner, _, name = path.rpartition(".")
        holder = getattr(sys.modules[module], owner, None) if owner else sys.modules[module]
        patching.after(holder, name, hook)


def _attach_hotfix() -> None:
    if not os.environ.get("SGLANG_GUARDS_HOTFIX"):
        return
    from sglang_guards.hook import hotfix

    hotfix.apply(os.environ)


def _exists(target: str) -> bool:
    """Whether a hook target is there. Its module is imported for that, as HookRegistry would do next."""
    owner, _, attribute = target.rpartition(".")
    try:
        return hasattr(pkgutil.resolve_name(owner), attribute)
    except (ImportError, AttributeError):
        return False


def after_check_server_args(result: Any, server_args: Any, *args: Any, **kwargs: Any) -> None:
    """AFTER hook: keeps SGLang's own result (None)."""
    os.environ[_REACHED] = "1"
    _handle_fused_moe_sum_all_reduce(server_args)


def _handle_fused_moe_sum_all_reduce(server_args: Any) -> None:
    """Validate a resolved ServerArgs; raises `LaunchRefused` for errors and nothing else."""
    try:
        with _collector_paused():
            from sglang_guards.hook.validate import validate

            refusal = validate(server_args, from_env(os.environ))
    except Exception as error:  # our fault must not become the server's
        warn(
            "sglang-guards could not check this launch: %s: %s", type(error).__name__, _without_secrets(error)
        )
        return
    if refusal is not None:
        raise refusal


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Syntax trees make many small objects; a full collection of SGLang's heap because of them takes 0.4 s."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def _without_secrets(error: Exception) -> str:
    """The text of an exception of ours; nothing where even that fails."""
    try:
        from sglang_guards import redact

        return redact.text(str(error), redact.secrets_in(sys.argv, os.environ))
    except Exception:
        return "(no text)"

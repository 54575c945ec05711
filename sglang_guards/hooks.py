"""Where the guard attaches to SGLang, and what it does there.

The validator runs after `ServerArgs.check_server_args`, once, in the launcher, when resolution and LoRA normalisation
are done and no GPU has been touched. A fault of ours is one WARNING line; the launch goes on as without us.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import pkgutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sglang_guards import __version__, compat
from sglang_guards.collect import DUMMY_PATHS, collect
from sglang_guards.judge import judge
from sglang_guards.launch import Launch
from sglang_guards.report import Finding, Report
from sglang_guards.settings import Settings, from_env

logger = logging.getLogger("sglang_guards")

#: The two decisions that SGLang can take late without stale consequences, and the value that switches them off.
LATE_OFF: Mapping[str, Any] = {
    "enable_fused_moe_sum_all_reduce": False,
    "enable_flashinfer_allreduce_fusion": False,
    "flashinfer_allreduce_fusion_backend": None,
}


class LaunchRefused(ValueError):
    """The launch would corrupt results or die later. The text lists every error and ends with the verdict."""

    def __init__(self, text: str, report: Report) -> None:
        super().__init__(text)
        self.report = report

    def __reduce__(self) -> tuple[Any, ...]:
        return (LaunchRefused, (str(self), self.report))


def attach() -> None:
    """Register the hooks that this SGLang has targets for; a target that has moved is a WARNING line."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for note in from_env(os.environ).notes:
        logger.warning("sglang-guards: %s", note)
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
            logger.warning("sglang-guards: the %s is not active: %s: %s", what, type(error).__name__, error)


def _attach_auto_enable(registry: Any, hook_type: Any) -> None:
    from sglang_guards import auto_enable

    if not from_env(os.environ).auto_enable:
        return
    if _exists(compat.AUTO_PASS_TARGET):
        registry.register(compat.AUTO_PASS_TARGET, auto_enable.around_auto_enable, hook_type.AROUND)
    elif _exists(compat.AUTO_METHOD_TARGET):  # up to 0.5.14
        registry.register(compat.AUTO_METHOD_TARGET, _after_model_adjustments, hook_type.AFTER)


def _after_model_adjustments(result: Any, server_args: Any, *args: Any, **kwargs: Any) -> None:
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
        logger.warning("sglang-guards: %s: %s is not in this SGLang", loss, target)


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
        refusal = _validate(server_args, from_env(os.environ))
    except Exception as error:  # our fault must not become the server's
        logger.warning("sglang-guards could not check this launch: %s: %s", type(error).__name__, error)
        return
    if refusal is not None:
        raise refusal


def _validate(server_args: Any, settings: Settings) -> LaunchRefused | None:
    if settings.mode == "off":
        return None
    canary = os.environ.get("SGLANG_GUARDS_CANARY")
    if canary:
        with open(canary, "a", encoding="utf-8") as file:
            file.write(json.dumps({"fired": True, "pid": os.getpid()}) + "\n")
    view = compat.view(server_args)
    if str(getattr(view, "model_path", "")).lower() in DUMMY_PATHS:
        logger.info("sglang-guards: model path %r resolves nothing; rules skipped", view.model_path)
        return None
    started = time.perf_counter()
    report = inspect(server_args, settings)
    if settings.mode == "fix":
        report = _switch_off(server_args, settings, report)
    _tell(report, settings, time.perf_counter() - started)
    if settings.report_path:
        _write_report(settings.report_path, report)
    if not report.errors:
        return None
    from sglang_guards import render

    return LaunchRefused(render.refusal(report), report)


def inspect(server_args: Any, settings: Settings) -> Report:
    """The report of a resolved ServerArgs on this machine."""
    from sglang_guards import source

    view = compat.view(server_args)
    problems: list[str] = []
    facts = collect(view, raw=server_args, typed=typed_flags(sys.argv, compat.fields(server_args)), problems=problems)
    launch = Launch(
        facts=facts,
        argv=(),
        env=dict(os.environ),
        typed=typed_flags(sys.argv, compat.fields(server_args)),
        source=source.find(),
    )
    report = judge(launch, settings)
    return _with_notes(report, problems)


def _with_notes(report: Report, problems: Sequence[str]) -> Report:
    import dataclasses

    return dataclasses.replace(report, internal=(*problems, *report.internal)) if problems else report


def _switch_off(server_args: Any, settings: Settings, report: Report) -> Report:
    """Write the late decisions that settle errors, log old -> new, and judge again."""
    for field in dict.fromkeys(field for error in report.errors for field in late_fields(error)):
        old = getattr(compat.view(server_args), field)
        try:
            compat.write(server_args, "sglang-guards", **{field: LATE_OFF[field]})
        except Exception as error:
            logger.warning("sglang-guards: could not switch %s off: %s: %s", field, type(error).__name__, error)
            continue
        ids = ", ".join(e.id for e in report.errors if field in late_fields(e))
        logger.warning("sglang-guards fix [%s]: %s %r -> %r", ids, field, old, LATE_OFF[field])
    return inspect(server_args, settings)


def late_fields(finding: Finding) -> tuple[str, ...]:
    """The fields that `fix` mode may write for a finding: all of its fix, or nothing."""
    wanted = finding.fix.set if finding.fix is not None else {}
    if not wanted or any(k not in LATE_OFF or v not in (None, False) for k, v in wanted.items()):
        return ()
    return tuple(wanted)


_told: set[int] = set()


def _tell(report: Report, settings: Settings, seconds: float) -> None:
    """The armed line and the findings; a second validation of the same launch says nothing new."""
    from sglang_guards import render

    lines = render.log_lines(report)
    key = hash((tuple(lines), report.applied))
    if key in _told:
        return
    _told.add(key)
    logger.info(
        "sglang-guards %s armed (%s): SGLang %s, %d of %d rules apply, %.0f ms",
        __version__,
        settings.mode,
        report.target.get("sglang"),
        report.applied,
        report.known,
        seconds * 1000,
    )
    for line in lines:
        logger.log(logging.INFO if line.startswith("sglang-guards info[") else logging.WARNING, "%s", line)


def _write_report(path: str, report: Report) -> None:
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            json.dump(report.to_dict(), file, indent=2)
        os.replace(temporary, path)
    except (OSError, TypeError, ValueError) as error:
        logger.warning("sglang-guards: SGLANG_GUARDS_REPORT: %s could not be written: %s", path, error)


#: Spellings that argparse knows beside the field's own name.
_ALIASES = {
    "tp": "tp_size",
    "tensor_parallel_size": "tp_size",
    "ep": "ep_size",
    "expert_parallel_size": "ep_size",
    "dp": "dp_size",
    "data_parallel_size": "dp_size",
    "pp": "pp_size",
    "pipeline_parallel_size": "pp_size",
    "model": "model_path",
    "speculative_algo": "speculative_algorithm",
    "mem_frac": "mem_fraction_static",
}


def typed_flags(argv: Sequence[str], fields: Sequence[str]) -> dict[str, str]:
    """Field -> flag as typed, told from a command line without building SGLang's parser (which costs more)."""
    typed: dict[str, str] = {}
    known = set(fields)
    for index, token in enumerate(argv):
        if not token.startswith("--") or token == "--":
            continue
        name, equals, value = token[2:].partition("=")
        key = _ALIASES.get(name.replace("-", "_"), name.replace("-", "_"))
        if key not in known:
            longer = [field for field in fields if field.startswith(key)]
            if len(longer) != 1:
                continue
            key = longer[0]
        following = argv[index + 1] if index + 1 < len(argv) and not argv[index + 1].startswith("--") else ""
        typed[key] = token if equals else f"{token} {following}".strip()
    return typed

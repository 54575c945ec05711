"""Validate a resolved ServerArgs in the launcher: judge it, repair what may be repaired late, say it, refuse it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sglang_guards import __version__, flags, redact, sglang_compat
from sglang_guards.errors import LaunchRefused
from sglang_guards.judge import judge
from sglang_guards.launch.collect import DUMMY_PATHS, collect
from sglang_guards.launch.facts import Launch
from sglang_guards.log import info, say, warn
from sglang_guards.report.model import Finding, Report
from sglang_guards.settings import Settings

#: The two decisions that SGLang can take late without stale consequences, and the value that switches them off.
LATE_OFF: Mapping[str, Any] = {
    "enable_fused_moe_sum_all_reduce": False,
    "enable_flashinfer_allreduce_fusion": False,
    "flashinfer_allreduce_fusion_backend": None,
}
#: However a fix spells it, fusion off is one decision: both of its fields, whichever this release has.
_FUSION = ("enable_flashinfer_allreduce_fusion", "flashinfer_allreduce_fusion_backend")
_FORBIDS = "enforce_disable_flashinfer_allreduce_fusion"


def validate(server_args: Any, settings: Settings) -> LaunchRefused | None:
    """The refusal to raise, or None when the launch may go on."""
    if settings.mode == "off":
        return None
    canary = os.environ.get("SGLANG_GUARDS_CANARY")
    if canary:
        with contextlib.suppress(OSError), open(canary, "a", encoding="utf-8") as file:
            file.write(json.dumps({"fired": True, "pid": os.getpid()}) + "\n")
    view = sglang_compat.view(server_args)
    if str(getattr(view, "model_path", "")).lower() in DUMMY_PATHS:
        info("sglang-guards: model path %r resolves nothing; rules skipped", view.model_path)
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
    from sglang_guards.report import text as render

    return LaunchRefused(render.refusal(report), report)


def inspect(server_args: Any, settings: Settings) -> Report:
    """The report of a resolved ServerArgs on this machine."""
    from sglang_guards import source

    view = sglang_compat.view(server_args)
    problems: list[str] = []
    typed = typed_flags(sys.argv, sglang_compat.fields(server_args))
    facts = collect(view, raw=server_args, typed=typed, problems=problems)
    if settings.build:
        from sglang_guards.hook import build_check

        built, notes = build_check.facts(tuple(sys.argv))
        facts |= built
        problems += notes
    launch = Launch(
        facts=facts,
        argv=(),
        env=dict(os.environ),
        typed=typed,
        source=source.find(),
    )
    report = _with_notes(judge(launch, settings, name_patches=settings.report_path is not None), problems)
    args = {name.removeprefix("args."): fact.value for name, fact in facts.items()}
    return redact.report(report, redact.secrets_in(sys.argv, os.environ, args))


def _with_notes(report: Report, problems: Sequence[str]) -> Report:
    return dataclasses.replace(report, notes=(*problems, *report.notes)) if problems else report


def _switch_off(server_args: Any, settings: Settings, report: Report) -> Report:
    """Write the late decisions that settle errors, log old -> new, and judge again."""
    for field in dict.fromkeys(field for error in report.errors for field in late_fields(error)):
        old = getattr(sglang_compat.view(server_args), field, None)
        if not old:  # off already, or of another release
            continue
        try:
            sglang_compat.write(server_args, "sglang-guards", **{field: LATE_OFF[field]})
        except Exception as error:
            warn("sglang-guards: could not switch %s off: %s: %s", field, type(error).__name__, error)
            continue
        ids = ", ".join(e.id for e in report.errors if field in late_fields(e))
        warn("sglang-guards fix [%s]: %s %r -> %r", ids, field, old, LATE_OFF[field])
    return inspect(server_args, settings)


def late_fields(finding: Finding) -> tuple[str, ...]:
    """The fields that `fix` mode may write for a finding: all of its fix, or nothing."""
    wanted = dict(finding.fix.set) if finding.fix is not None else {}
    if wanted.pop(_FORBIDS, None) is True or (wanted and set(wanted) <= set(_FUSION)):
        wanted = dict.fromkeys(_FUSION) | wanted
    if not wanted or any(k not in LATE_OFF or v not in (None, False) for k, v in wanted.items()):
        return ()
    return tuple(wanted)


_told: set[int] = set()


def _tell(report: Report, settings: Settings, seconds: float) -> None:
    """The armed line and the findings; a second validation of the same launch says nothing new."""
    from sglang_guards.report import text as render

    lines = render.log_lines(report)
    key = hash((tuple(lines), report.applied))
    if key in _told:
        return
    _told.add(key)
    info(
        "sglang-guards %s armed (%s): SGLang %s, %d of %d rules apply, %.0f ms",
        __version__,
        settings.mode,
        report.target.get("sglang"),
        report.applied,
        report.known,
        seconds * 1000,
    )
    for line in lines:
        say(logging.INFO if line.startswith("sglang-guards info[") else logging.WARNING, "%s", line)


def _write_report(path: str, report: Report) -> None:
    from sglang_guards.hook import report_file

    try:
        report_file.write(path, json.dumps(report.to_dict(), indent=2))
    except (OSError, TypeError, ValueError) as error:
        warn("sglang-guards: SGLANG_GUARDS_REPORT: %s could not be written: %s", path, error)


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
    for flag in flags.typed(argv):
        name = flag.name[2:].replace("-", "_")
        key = _ALIASES.get(name, name)
        if key not in known:
            longer = [field for field in fields if field.startswith(key)]
            if len(longer) != 1:
                continue
            key = longer[0]
        typed[key] = flag.text
    return typed

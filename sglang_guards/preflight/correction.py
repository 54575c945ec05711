"""The corrected command: the findings' fixes, applied and checked again until SGLang takes it without an error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sglang_guards.build.model import BUILT
from sglang_guards.errors import CouldNotCheck
from sglang_guards.launch.facts import Launch
from sglang_guards.preflight import build_fixes, options
from sglang_guards.preflight.judging import Result, Target, judged
from sglang_guards.report.model import Report, Severity

#: Rounds of correcting and checking again before giving up on a corrected command.
_ROUNDS = 5


def with_build_fix(target: Target, result: Result) -> Result:
    """A change for what SGLang's constructors refuse, where one of the known ones makes them accept the launch."""
    errors = result.report.errors
    broken = [f for f in errors if f.id.startswith("BLD") and f.fix is None]
    if not broken or any(f.fix is not None and f.fix.set for f in errors):
        return result
    for fix in build_fixes.candidates(result.launch, broken[0].id):
        args, unsettable = options.edit(target.command.args, dict(fix.set), result.table)
        if unsettable:
            continue
        try:
            again = judged(target, target.command.with_args(args), {})
        except CouldNotCheck:
            continue
        if again.report.errors or (again.report.build or {}).get("status") != BUILT:
            continue
        findings = tuple(replace(f, fix=fix) if f is broken[0] else f for f in result.report.findings)
        return replace(result, report=replace(result.report, findings=findings))
    return result


def corrected(target: Target, first: Result) -> tuple[tuple[str, ...] | None, dict[str, Any]]:
    """The command with the findings' fixes applied, checked again until no error is left, and what has to change in
    the --config file beside it. None when that fails.
    """
    result, cmd = first, target.command
    edits: dict[str, Any] = {}
    in_file: dict[str, Any] = {}
    for _ in range(_ROUNDS):
        wanted = _fixes(result.report, edits)
        if not wanted:
            break
        edits |= wanted
        # A switch that the --config file turns on cannot be taken back by a flag: edit the merged arguments.
        in_file = {
            k: v for k, v in edits.items() if k in first.from_config and not _settable_over_file(k, v, first)
        }
        args, unsettable = options.edit(
            target.command.args, {k: v for k, v in edits.items() if k not in in_file}, first.table
        )
        if unsettable:
            return None, {}
        cmd = target.command.with_args(args)
        try:
            result = judged(target, cmd, in_file)
        except CouldNotCheck:
            return None, {}
    if not edits or result.report.errors or not _splits(result.launch):
        return None, {}
    return cmd.argv, in_file


def _splits(launch: Launch) -> bool:
    """Whether experts can be split as the launch says: SGLang makes empty groups where EP is larger than TP."""
    tp, ep = launch.get("args.tp_size"), launch.get("args.ep_size")
    return not (isinstance(tp, int) and isinstance(ep, int)) or ep <= max(tp, 1)


def _settable_over_file(name: str, value: Any, result: Result) -> bool:
    """Whether a flag on the command line wins over the --config file for this value."""
    if value is None:
        return False
    kinds = {option.kind for option in result.table if option.field == name}
    return bool(value) if kinds <= {"true", "const"} else True


def _fixes(report: Report, already: Mapping[str, Any]) -> dict[str, Any]:
    """Fields to change: every error's fix, and the safe fixes of warnings. The worst finding's choice wins."""
    changes: dict[str, Any] = {}
    for finding in report.findings:
        fix = finding.fix
        if fix is None or finding.severity is Severity.INFO:
            continue
        if finding.severity is Severity.WARNING and fix.applicability != "safe":
            continue
        for name, value in fix.set.items():
            if name not in already:
                changes.setdefault(name, value)
    return changes


def in_file(name: str, value: Any) -> str:
    key = name.replace("_", "-")
    what = f"remove {key} from" if value in (None, False) else f"set {key} to {value} in"
    return f"the corrected command needs a change of the --config file too: {what} it"

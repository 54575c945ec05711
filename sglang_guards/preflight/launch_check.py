"""From a launch command to a report, without a GPU: SGLang's own parser and resolution, on simulated GPUs."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sglang_guards import redact, settings, source
from sglang_guards.build.facts import facts as build_facts
from sglang_guards.build.model import BUILT, NOT_BUILT, BuildResult
from sglang_guards.errors import CouldNotCheck, NotAccepted
from sglang_guards.flag_table import table as landscape
from sglang_guards.judge import judge
from sglang_guards.launch import gpus, model_files
from sglang_guards.launch.facts import Fact, Launch
from sglang_guards.preflight import (
    build_fixes,
    model_types,
    options,
    plugins,
    releases,
    surroundings,
    worker_client,
)
from sglang_guards.preflight import command_line as command
from sglang_guards.preflight import launch_file as files
from sglang_guards.preflight.what_a_flag_changes import changes, may_have_cost, typed_values
from sglang_guards.report.model import FlagVerdict, Report, Severity

__all__ = ["CouldNotCheck", "check"]

#: Rounds of correcting and checking again before giving up on a corrected command.
_ROUNDS = 5


def check(
    argv: Sequence[str],
    *,
    gpu: str | None = None,
    env: Mapping[str, str] | None = None,
    model_config: str | os.PathLike[str] | None = None,
    build: bool = True,
    launch_file: str | os.PathLike[str] | None = None,
    nth: int | None = None,
    fixed_release: bool = False,
    load_plugins: bool = False,
    side_effects: bool = False,
) -> Report:
    """Check one launch command as the operator types it, against the SGLang installed here.

    `gpu` is ``<count per node>x<name>`` or None (``auto``) for this machine's; `env` is what the launch would inherit
    (default: this process's); `model_config` is a config.json, or a folder with one, to use when the checkpoint is
    not here. Without words in `argv` the launch in `launch_file` is checked (a script, a Slurm job, a compose file or
    Kubernetes YAML), the `nth` where it holds several. `fixed_release` keeps to the SGLang found first, whatever
    PYTHONPATH the command sets. With `side_effects` the verdict table tells of every typed flag what else it changed;
    without, only a flag that may have cost a faster attention backend is looked at.

    `load_plugins` loads the other SGLang plugins of this environment, which is code of others, as SGLang would.
    ``SGLANG_GUARDS_IGNORE`` in the environment suppresses findings; the mode does not matter here: an error
    is an error. Raises `CouldNotCheck` when the launch cannot be checked.
    """
    started = time.monotonic()
    base = dict(os.environ if env is None else env)
    given_config = None if model_config is None else _config_path(model_config)
    cmd = (
        command.parse(argv, base, nth) if argv or launch_file is None else files.read(launch_file, base, nth)
    )
    cmd, gone = _known(cmd)
    on, gpu_notes = surroundings.visible_gpus(
        gpus.parse(gpu) if gpu not in (None, "", "auto") else gpus.detect(), cmd, base
    )
    judged_source, source_notes = (
        (_installed(), []) if fixed_release else surroundings.judged_source(cmd, base)
    )
    if cmd.module == "sglang" and not (judged_source.root / "__main__.py").is_file():
        raise CouldNotCheck(
            f"'python -m sglang' does not start SGLang {judged_source.version}: its package has no __main__",
            "write sglang serve …, or python -m sglang.launch_server …",
        )
    config = given_config or surroundings.mounted_config(cmd)
    target = _Target(
        command=cmd,
        gpu=on,
        base=base,
        model_config=config,
        build=build,
        side_effects=side_effects,
        source=judged_source,
    )
    others = plugins.installed(judged_source.root, cmd.environment(base))
    target = replace(target, load_plugins=load_plugins and bool(others))
    surrounding = [
        *([] if fixed_release else surroundings.other_sglang(cmd, base, judged_source)),
        *source_notes,
        *gpu_notes,
        *cmd.notes,
        *gone,
        *plugins.note(others, target.load_plugins),
    ]
    result = _with_build_fix(target, _judged(target, cmd, {}, also_without=True))
    _plugins_matter(target, result, others)
    rows, notes = _verdicts(result.launch)
    corrected, in_file = _corrected(target, result)
    report = replace(
        result.report,
        corrected=corrected,
        flags=rows,
        notes=(
            *surrounding,
            *result.report.notes,
            *notes,
            *(_LEFT_OUT if corrected is not None and cmd.cut else ()),
            *(_in_file(name, value) for name, value in in_file.items()),
        ),
    )
    report = _without_secrets(report, target, result)
    return replace(report, seconds=time.monotonic() - started)


def _plugins_matter(target: _Target, result: _Result, others: Sequence[plugins.Plugin]) -> None:
    """Raise where a refusal of SGLang alone would not come with the plugins that are installed."""
    refusal = next((f for f in result.report.findings if f.id == "SGL001"), None)
    if refusal is None or not others or target.load_plugins:
        return
    try:
        again = _judged(replace(target, load_plugins=True), target.command, {})
    except CouldNotCheck:
        return
    if all(f.id != "SGL001" for f in again.report.findings):
        raise plugins.prevented(others, refusal.message)


#: Said where the corrected command is less than what was given.
_LEFT_OUT = ("the corrected command is the launch alone, without redirections and what stands around it",)


def _known(cmd: command.Command) -> tuple[command.Command, list[str]]:
    """What the text leaves to the running shell, said; flags that hold it are judged as written."""
    if not cmd.unknown:
        return cmd, []
    return cmd, [
        f"{', '.join(cmd.unknown)} is not set here and is judged as written; give its value in front"
    ]


@dataclass(frozen=True)
class _Target:
    """What stays the same while the command is corrected."""

    command: command.Command
    gpu: gpus.Gpu
    base: Mapping[str, str]
    model_config: Path | None
    build: bool
    side_effects: bool
    source: source.Source
    load_plugins: bool = False


@dataclass(frozen=True)
class _Result:
    report: Report
    launch: Launch
    table: tuple[options.Option, ...]
    merged: tuple[str, ...]
    from_config: frozenset[str]
    values: Mapping[str, Any]


def _config_path(path: str | os.PathLike[str]) -> Path:
    absolute = Path(path).expanduser().absolute()
    model_files.read(absolute)
    return absolute


def _installed() -> source.Source:
    found = source.find()
    if found is None:
        raise CouldNotCheck(
            "SGLang is not installed in this Python environment",
            "install sglang-guards beside the SGLang that serves, and run check there",
        )
    return found


def _asked(target: _Target, cmd: command.Command, edits: Mapping[str, Any], *, build: bool) -> dict[str, Any]:
    """What the worker answers about a command, with some args changed."""
    env = cmd.environment(dict(target.base))
    if target.load_plugins:
        env[plugins.VARIABLE] = "1"
    with tempfile.TemporaryDirectory(prefix="sglang-guards-") as scratch:
        request = {
            "args": list(cmd.args),
            "serve": cmd.serve,
            "env": env,
            "cwd": _folder(cmd),
            "gpu": target.gpu.to_dict(),
            "model_config": None if target.model_config is None else str(target.model_config),
            "edits": dict(edits),
            "scratch": scratch,
            "timeout_s": worker_client.RESOLVE_S + (worker_client.BUILD_S if build else 0.0),
            "build_s": worker_client.BUILD_S if build else 0.0,
        }
        return worker_client.ask(request, env)


def _without_each(
    target: _Target, cmd: command.Command, facts: Mapping[str, Fact], given: Mapping[str, Any]
) -> dict[str, Fact]:
    """What each typed flag changes beside itself: facts ``without.<flag>``."""

    if not (target.side_effects or may_have_cost(given, _args(facts))):
        return {}

    def without(name: str) -> dict[str, Any] | None:
        answer = _asked(target, cmd, {name: None}, build=False)
        if answer["kind"] != "facts":
            return None
        return _args({key: Fact(*row) for key, row in answer["facts"].items()})

    return changes(given, _args(facts), without)


def _args(facts: Mapping[str, Fact]) -> dict[str, Any]:
    return {
        name.removeprefix("args."): fact.value for name, fact in facts.items() if name.startswith("args.")
    }


def _judged(
    target: _Target, cmd: command.Command, edits: Mapping[str, Any], *, also_without: bool = False
) -> _Result:
    env = cmd.environment(dict(target.base))
    answer = _asked(target, cmd, edits, build=target.build)
    table = options.from_json(answer.get("table") or ())
    merged = tuple(answer.get("merged") or ())
    kind = answer["kind"]
    given = dict(answer.get("given") or {})
    if kind not in ("facts", "refused"):
        trouble = _could_not(answer, cmd, table, target.source)
        if cmd.unknown and kind in ("usage", "model"):
            trouble.hint = f"{', '.join(cmd.unknown)} is not set here: give its value in front of the command"
        secrets = redact.secrets_in((*cmd.argv, *merged), _secret_env(env), given)
        raise type(trouble)(redact.text(trouble.message, secrets), redact.text(trouble.hint, secrets))
    facts = {name: Fact(*row) for name, row in (answer.get("facts") or {}).items()}
    if kind == "refused":
        facts |= {
            f"refusal.{key}": Fact(str(answer.get(key) or ""), "resolved") for key in ("message", "where")
        }
    elif also_without:
        facts |= _without_each(target, cmd, facts, given)
    facts |= typed_values(given)
    build = answer.get("build")
    if build is not None:
        facts |= build_facts(BuildResult.from_dict(build))
    if target.gpu.measured:
        facts = {k: replace(f, origin="machine") if k.startswith("gpu.") else f for k, f in facts.items()}
    launch = Launch(
        facts, argv=cmd.argv, env=env, typed=options.typed(merged or cmd.args, table), source=target.source
    )
    report = judge(launch, replace(settings.from_env(env), mode="enforce"))
    if kind == "refused":
        report = replace(report, facts=_as_typed(given, target.gpu))
    notes = (*report.notes, *answer.get("problems", ()), *_notes(answer, cmd))
    report = replace(report, notes=notes, build=build)
    values = given | _args(facts)
    return _Result(report, launch, table, merged, frozenset(answer.get("from_config") or ()), values)


def _folder(cmd: command.Command) -> str:
    """Where relative paths of the launch begin."""
    folder = Path(cmd.cwd).expanduser()
    return str(folder.absolute()) if cmd.cwd and not cmd.contained and folder.is_dir() else os.getcwd()


def _verdicts(launch: Launch) -> tuple[tuple[FlagVerdict, ...], tuple[str, ...]]:
    """The verdict table, and a note when it could not be made."""
    try:
        return tuple(landscape.verdicts(launch)), ()
    except Exception as error:  # noqa: BLE001 - as with a rule: a fault of ours is a line in the report
        return (), (f"the verdict table could not be made: {type(error).__name__}: {error}",)


def _notes(answer: Mapping[str, Any], cmd: command.Command) -> list[str]:
    notes = _not_built(answer.get("build") or {})
    if answer.get("draft_unknown"):
        notes.append("the draft model's config is not on this machine, so rules about the draft are skipped")
    if any(word.startswith("--config=") for word in cmd.args):
        notes.append(
            "SGLang reads --config only when the file is a word of its own; --config=FILE is ignored"
        )
    return notes


def _not_built(build: Mapping[str, Any]) -> list[str]:
    """What was left out of a build that otherwise speaks."""
    ranks = build.get("ranks") or ()
    if all(one["status"] == NOT_BUILT for one in ranks):  # the head of the report says it
        return []
    return sorted(
        {
            f"the {one['rank']['model']} model was not built on rank {one['rank']['rank']}: {one['reason']}"
            for one in ranks
            if one["status"] == NOT_BUILT
        }
    )


def _as_typed(given: Mapping[str, Any], gpu: gpus.Gpu) -> dict[str, dict[str, Any]]:
    """What is known of a launch that was not resolved; to be shown, not to be judged."""
    shown = {f"args.{name}": {"value": value, "from": "given"} for name, value in given.items()}
    of_gpu = {"platform": gpu.platform, "name": gpu.name, "sm": gpu.sm, "count": gpu.count}
    origin = "machine" if gpu.measured else "assumed"
    return shown | {f"gpu.{k}": {"value": v, "from": origin} for k, v in of_gpu.items() if v is not None}


def _could_not(
    answer: Mapping[str, Any], cmd: command.Command, table: Sequence[options.Option], installed: source.Source
) -> CouldNotCheck:
    kind, message = answer["kind"], str(answer.get("message", ""))
    if kind == "usage":
        return _bad_usage(message, cmd, table, installed)
    if kind == "config":
        return CouldNotCheck(f"--config cannot be used: {message}", "correct the YAML file")
    if kind == "model":
        return CouldNotCheck(message, str(answer.get("hint", "")))
    if answer.get("model_type"):
        return model_types.could_not(str(answer["model_type"]), message, installed)
    if kind == "timeout":
        return CouldNotCheck(message, "run the check again; report it if it stays so")
    return CouldNotCheck(
        f"the launch could not be resolved here: {message}",
        _last_log_line(answer) if kind == "died" else str(answer.get("hint", "")),
    )


def _last_log_line(answer: Mapping[str, Any]) -> str:
    lines = [line for line in str(answer.get("log") or "").splitlines() if line.strip()]
    return f"SGLang's last line was: {lines[-1].strip()}" if lines else ""


def _bad_usage(
    message: str, cmd: command.Command, table: Sequence[options.Option], installed: source.Source
) -> NotAccepted:
    unknown = message.partition("unrecognized arguments: ")[2].split()
    flag = next((word.partition("=")[0] for word in unknown if word.startswith("--")), None)
    if message.startswith("ambiguous option: "):
        word = message.removeprefix("ambiguous option: ").split()[0].partition("=")[0]
        return NotAccepted(
            f"SGLang {installed.version} does not know {word}: {message}",
            releases.that_have(word, installed.version),
        )
    if flag is None:
        return NotAccepted(f"SGLang {installed.version} does not accept this command: {message}")
    in_file = "" if any(word.partition("=")[0] == flag for word in cmd.args) else " (from the --config file)"
    return NotAccepted(
        f"SGLang {installed.version} does not know {flag}{in_file}",
        releases.help_with(flag, installed.version, table),
    )


def _in_file(name: str, value: Any) -> str:
    key = name.replace("_", "-")
    what = f"remove {key} from" if value in (None, False) else f"set {key} to {value} in"
    return f"the corrected command needs a change of the --config file too: {what} it"


def _with_build_fix(target: _Target, result: _Result) -> _Result:
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
            again = _judged(target, target.command.with_args(args), {})
        except CouldNotCheck:
            continue
        if again.report.errors or (again.report.build or {}).get("status") != BUILT:
            continue
        findings = tuple(replace(f, fix=fix) if f is broken[0] else f for f in result.report.findings)
        return replace(result, report=replace(result.report, findings=findings))
    return result


def _corrected(target: _Target, first: _Result) -> tuple[tuple[str, ...] | None, dict[str, Any]]:
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
            result = _judged(target, cmd, in_file)
        except CouldNotCheck:
            return None, {}
    if not edits or result.report.errors or not _splits(result.launch):
        return None, {}
    return cmd.argv, in_file


def _splits(launch: Launch) -> bool:
    """Whether experts can be split as the launch says: SGLang makes empty groups where EP is larger than TP."""
    tp, ep = launch.get("args.tp_size"), launch.get("args.ep_size")
    return not (isinstance(tp, int) and isinstance(ep, int)) or ep <= max(tp, 1)


def _settable_over_file(name: str, value: Any, result: _Result) -> bool:
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


def _without_secrets(report: Report, target: _Target, result: _Result) -> Report:
    env = _secret_env(target.command.environment(dict(target.base)))
    return redact.report(
        report, redact.secrets_in((*target.command.argv, *result.merged), env, result.values)
    )


def _secret_env(env: Mapping[str, str]) -> dict[str, str]:
    return redact.env_secrets(env)

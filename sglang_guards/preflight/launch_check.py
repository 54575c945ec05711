"""From a launch command to a report, without a GPU: SGLang's own parser and resolution, on simulated GPUs."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sglang_guards import redact, source
from sglang_guards.errors import CouldNotCheck
from sglang_guards.flag_table import table as landscape
from sglang_guards.launch import gpus, model_files
from sglang_guards.launch.facts import Launch
from sglang_guards.preflight import command_line as command
from sglang_guards.preflight import (
    correction,
    plugins,
    surroundings,
)
from sglang_guards.preflight import launch_file as files
from sglang_guards.preflight.judging import Result, Target, judged
from sglang_guards.report.model import FlagVerdict, Report

__all__ = ["CouldNotCheck", "check"]


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
    target = Target(
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
    result = correction.with_build_fix(target, judged(target, cmd, {}, also_without=True))
    _plugins_matter(target, result, others)
    rows, notes = _verdicts(result.launch)
    corrected, in_file = correction.corrected(target, result)
    report = replace(
        result.report,
        corrected=corrected,
        flags=rows,
        notes=(
            *surrounding,
            *result.report.notes,
            *notes,
            *(_LEFT_OUT if corrected is not None and cmd.cut else ()),
            *(correction.in_file(name, value) for name, value in in_file.items()),
        ),
    )
    report = _without_secrets(report, target, result)
    return replace(report, seconds=time.monotonic() - started)


def _plugins_matter(target: Target, result: Result, others: Sequence[plugins.Plugin]) -> None:
    """Raise where a refusal of SGLang alone would not come with the plugins that are installed."""
    refusal = next((f for f in result.report.findings if f.id == "SGL001"), None)
    if refusal is None or not others or target.load_plugins:
        return
    try:
        again = judged(replace(target, load_plugins=True), target.command, {})
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


def _verdicts(launch: Launch) -> tuple[tuple[FlagVerdict, ...], tuple[str, ...]]:
    """The verdict table, and a note when it could not be made."""
    try:
        return tuple(landscape.verdicts(launch)), ()
    except Exception as error:  # noqa: BLE001 - as with a rule: a fault of ours is a line in the report
        return (), (f"the verdict table could not be made: {type(error).__name__}: {error}",)


def _without_secrets(report: Report, target: Target, result: Result) -> Report:
    env = redact.env_secrets(target.command.environment(dict(target.base)))
    return redact.report(
        report, redact.secrets_in((*target.command.argv, *result.merged), env, result.values)
    )

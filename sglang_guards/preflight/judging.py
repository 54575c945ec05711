"""One launch command, resolved by SGLang itself and judged by the rules: what `check` does once or several times."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sglang_guards import redact, settings, source
from sglang_guards.build.facts import facts as build_facts
from sglang_guards.build.model import NOT_BUILT, BuildResult
from sglang_guards.judge import judge
from sglang_guards.launch import gpus
from sglang_guards.launch.facts import Fact, Launch
from sglang_guards.preflight import command_line as command
from sglang_guards.preflight import options, plugins, trouble, worker_client
from sglang_guards.preflight.messages import Answer, Request
from sglang_guards.preflight.what_a_flag_changes import changes, may_have_cost, typed_values
from sglang_guards.report.model import Report


@dataclass(frozen=True)
class Target:
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
class Result:
    report: Report
    launch: Launch
    table: tuple[options.Option, ...]
    merged: tuple[str, ...]
    from_config: frozenset[str]
    values: Mapping[str, Any]


def asked(target: Target, cmd: command.Command, edits: Mapping[str, Any], *, build: bool) -> Answer:
    """What the worker answers about a command, with some args changed."""
    env = cmd.environment(dict(target.base))
    if target.load_plugins:
        env[plugins.VARIABLE] = "1"
    with tempfile.TemporaryDirectory(prefix="sglang-guards-") as scratch:
        request: Request = {
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
    target: Target, cmd: command.Command, facts: Mapping[str, Fact], given: Mapping[str, Any]
) -> dict[str, Fact]:
    """What each typed flag changes beside itself: facts ``without.<flag>``."""

    if not (target.side_effects or may_have_cost(given, _args(facts))):
        return {}

    def without(name: str) -> dict[str, Any] | None:
        answer = asked(target, cmd, {name: None}, build=False)
        if answer["kind"] != "facts":
            return None
        return _args({key: Fact(*row) for key, row in answer["facts"].items()})

    return changes(given, _args(facts), without)


def _args(facts: Mapping[str, Fact]) -> dict[str, Any]:
    return {
        name.removeprefix("args."): fact.value for name, fact in facts.items() if name.startswith("args.")
    }


def judged(
    target: Target, cmd: command.Command, edits: Mapping[str, Any], *, also_without: bool = False
) -> Result:
    env = cmd.environment(dict(target.base))
    answer = asked(target, cmd, edits, build=target.build)
    table = options.from_json(answer.get("table") or ())
    merged = tuple(answer.get("merged") or ())
    kind = answer["kind"]
    given = dict(answer.get("given") or {})
    if kind not in ("facts", "refused"):
        why = trouble.could_not(answer, cmd, table, target.source)
        if cmd.unknown and kind in ("usage", "model"):
            why.hint = f"{', '.join(cmd.unknown)} is not set here: give its value in front of the command"
        secrets = redact.secrets_in((*cmd.argv, *merged), redact.env_secrets(env), given)
        raise type(why)(redact.text(why.message, secrets), redact.text(why.hint, secrets))
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
    return Result(report, launch, table, merged, frozenset(answer.get("from_config") or ()), values)


def _folder(cmd: command.Command) -> str:
    """Where relative paths of the launch begin."""
    folder = Path(cmd.cwd).expanduser()
    return str(folder.absolute()) if cmd.cwd and not cmd.contained and folder.is_dir() else os.getcwd()


def _notes(answer: Answer, cmd: command.Command) -> list[str]:
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

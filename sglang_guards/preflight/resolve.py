"""What the helper's forked child does for one request: parse and resolve with SGLang's own code, collect the facts.

An answer has a `kind`: ``facts``; ``usage`` (SGLang's parser says no); ``config`` (the --config file); ``model`` (the
checkpoint); ``refused`` (SGLang's resolution says no, which is a finding); ``trouble`` (our simulation failed).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, cast

from sglang_guards import sglang_compat
from sglang_guards.build import construct, headers, stand_ins
from sglang_guards.build.model import BuildResult
from sglang_guards.errors import CouldNotCheck
from sglang_guards.launch import collect
from sglang_guards.launch.facts import Fact
from sglang_guards.launch.gpus import Gpu
from sglang_guards.preflight import (
    failure,
    local_model,
    offline,
    options,
    plain_config,
    plugins,
    simulated_gpu,
    target_machine,
)
from sglang_guards.preflight.messages import Answer, Request
from sglang_guards.preflight.parsed import Parsed


class _Usage(Exception):
    """argparse's own words."""


class _TooEarly(Exception):
    """This process imported what reads a variable that the resolution has now changed."""


def answer(request: Request) -> Answer:
    """Parse, resolve and collect one launch. Never raises for what an operator can get wrong."""
    env = dict(os.environ)
    offline.no_network()
    simulated_gpu.tell_tools(Gpu(**request["gpu"]))
    parsed = Parsed(request, env=env)
    try:
        parsed.plugins = plugins.load()
        args = _serve_args(request["args"]) if request["serve"] else list(request["args"])
        result = _resolve_any_type(args, parsed)
    except CouldNotCheck as error:
        result = {"kind": "model", "message": error.message, "hint": error.hint}
    except _TooEarly:
        return {"kind": "too early"}
    except _Usage as error:
        result = {"kind": "usage", "message": str(error)}
    except ImportError as error:
        result = failure.trouble(error, parsed)
    except stand_ins.CannotTell as error:
        result = {"kind": "trouble", "message": f"SGLang's resolution asks {error}"}
    except (Exception, SystemExit) as error:
        result = failure.failure(error, parsed)
    result["table"] = [option.to_dict() for option in parsed.table]
    result["from_config"] = list(_only_in_config(request["args"], parsed))
    result["merged"] = list(parsed.merged)
    result["given"] = {name: collect.plain(value) for name, value in parsed.given.items()}
    renamed = {k: _renamed(v, parsed.stands_for) if k != "table" else v for k, v in result.items()}
    return cast(Answer, renamed)


def _serve_args(args: Sequence[str]) -> list[str]:
    """``sglang serve`` takes arguments of its own first; the installed release's code says which."""
    from sglang.cli import serve

    words = list(args)
    kind = "auto"
    try:
        if hasattr(serve, "_extract_model_type_override"):
            kind, words = serve._extract_model_type_override(words)
        if hasattr(serve, "_normalize_positional_model_path"):
            words, _ = serve._normalize_positional_model_path(words)
    except Exception as error:
        raise _Usage(str(error).removeprefix("Error: ")) from None
    if kind not in ("auto", "llm"):
        raise _Usage(f"--model-type {kind} starts another kind of server; only language models are checked")
    return words


def _resolve_any_type(args: list[str], parsed: Parsed) -> Answer:
    """Resolve; once more with a plain config for each model type that transformers turns out not to know."""
    env = dict(os.environ)
    while True:
        try:
            return _resolve(args, parsed)
        except _TooEarly:
            raise
        except Exception as error:
            unknown = plain_config.unknown_type(error)
            if unknown is None or unknown in parsed.plain_types:
                raise
            plain_config.accept(unknown)
            parsed.plain_types.append(unknown)
            parsed.done = False
            os.environ.clear()
            os.environ.update(env)


def _resolve(args: list[str], parsed: Parsed) -> Answer:
    from sglang.srt.server_args import prepare_server_args

    original = argparse.ArgumentParser.parse_args

    def parse_args(parser: argparse.ArgumentParser, words: Any = None, namespace: Any = None) -> Any:
        if parsed.done:
            return original(parser, words, namespace)
        parsed.done = True
        return _parse(original, parser, list(words), parsed)

    argparse.ArgumentParser.parse_args = parse_args  # type: ignore[method-assign,assignment]
    server_args = prepare_server_args(args)
    view = sglang_compat.resolve(server_args)
    if str(view.model_path).lower() not in collect.DUMMY_PATHS:  # it wants a model name, which those have not
        check = getattr(server_args, "check_server_args", None)  # a nightly may have moved it
        if check is not None:
            check()
    view = sglang_compat.view(server_args)
    problems: list[str] = [plain_config.note(kind) for kind in parsed.plain_types]
    typed = options.typed(parsed.merged, parsed.table)
    facts = collect.collect(
        view,
        typed=typed,
        given=parsed.given,
        gpu=Gpu(**parsed.request["gpu"]),
        problems=problems,
    )
    if "random_seed" not in parsed.given:  # drawn anew in every process
        facts.pop("args.random_seed", None)
    if parsed.draft_unknown:
        facts = {
            k: v for k, v in facts.items() if not k.startswith("draft_model.") or k == "draft_model.exists"
        }
        facts["draft_model.built_in"] = Fact(False, "given")
    build = None
    if parsed.request.get("build_s"):
        _not_too_early(parsed)
        build = _built(server_args, view, parsed)
    return {
        "kind": "facts",
        "build": build,
        "facts": {name: [fact.value, fact.origin, fact.where] for name, fact in facts.items()},
        "typed": typed,
        "problems": [*problems, *parsed.problems],
        "draft_unknown": parsed.draft_unknown,
    }


def _not_too_early(parsed: Parsed) -> None:
    """A worker imports the model's modules after the resolution, with the variables that this one sets."""
    read = parsed.request.get("read_ahead") or ()
    if any(parsed.env.get(name) != os.environ.get(name) for name in read):
        raise _TooEarly


def _tensors(parsed: Parsed) -> headers.Tensors | None:
    """What the checkpoint's files say of its tensors, where the checkpoint is here."""
    if parsed.checkpoint is None:
        return None
    try:
        return headers.of_folder(parsed.checkpoint)
    except headers.BadHeaders as error:
        parsed.problems.append(f"the checkpoint's tensors could not be read: {error}")
        return None


def _built(server_args: Any, view: Any, parsed: Parsed) -> dict[str, Any] | None:
    """What SGLang's own constructors say of the launch, or why they could not be asked."""
    if str(view.model_path).lower() in collect.DUMMY_PATHS:
        return None
    if parsed.plain_types:
        kind = parsed.plain_types[0]
        return BuildResult(
            reason=f"the model type {kind} is known here from its JSON alone, and its class reads more"
        ).to_dict()
    made = construct.build(
        server_args,
        view,
        gpu=Gpu(**parsed.request["gpu"]),
        seconds=float(parsed.request["build_s"]),
        draft_known=not parsed.draft_unknown,
        tensors=_tensors(parsed),
    )
    return made.to_dict()


def _parse(
    original: Any, parser: argparse.ArgumentParser, words: list[str], parsed: Parsed
) -> argparse.Namespace:
    """SGLang's parser on the merged arguments, with what we need to know noted on the way."""
    from sglang.srt.server_args import ServerArgs

    fields = sglang_compat.fields(ServerArgs)
    parsed.table = options.table(parser, fields)
    edited, _ = options.edit(words, parsed.request.get("edits") or {}, parsed.table)
    parsed.merged = edited
    _say_instead_of_exit(parser)
    namespace: argparse.Namespace = original(parser, list(edited))
    parsed.given = _given(original, parser, list(edited), fields)
    parsed.stands_for |= target_machine.stand_in_devices(vars(namespace))
    target_machine.take_for_granted(parsed.given | _devices(namespace), os.environ, edited)
    local_model.prepare_model(namespace, parsed)
    return namespace


def _devices(namespace: argparse.Namespace) -> dict[str, Any]:
    return {k: v for k, v in vars(namespace).items() if k in target_machine.DEVICE_FIELDS and v}


def _say_instead_of_exit(parser: argparse.ArgumentParser) -> None:
    def error(message: str) -> NoReturn:
        raise _Usage(message)

    def leave(status: int = 0, message: str | None = None) -> NoReturn:
        raise _Usage((message or "").strip() or "the command only prints help or a version")

    parser.error = error  # type: ignore[method-assign]
    parser.exit = leave  # type: ignore[method-assign]
    parser.print_help = lambda file=None: None  # type: ignore[method-assign]


def _given(
    original: Any, parser: argparse.ArgumentParser, words: list[str], fields: Sequence[str]
) -> dict[str, Any]:
    """The fields that the operator set, with their values: parse once more with no defaults at all."""
    kept = [(action, action.default) for action in parser._actions]
    parser_defaults, parser._defaults = parser._defaults, {}
    try:
        for action in parser._actions:
            action.default = argparse.SUPPRESS
        values = vars(original(parser, words))
    finally:
        for action, default in kept:
            action.default = default
        parser._defaults = parser_defaults
    names = {action.dest: options.field_of(action, fields) for action in parser._actions}
    return {names.get(dest, dest): value for dest, value in values.items()}


def _only_in_config(args: Sequence[str], parsed: Parsed) -> tuple[str, ...]:
    """Fields that only the --config file sets."""
    typed_here = {use.option.field for use in options.uses(args, parsed.table)}
    return tuple(sorted({u.option.field for u in options.uses(parsed.merged, parsed.table)} - typed_here))


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    """Our temporary folders by the names that the operator gave."""
    if isinstance(value, str):
        for folder, name in names.items():
            value = value.replace(folder, name)
        return value
    if isinstance(value, dict):
        return {k: _renamed(v, names) for k, v in value.items()}
    if isinstance(value, list):
        return [_renamed(v, names) for v in value]
    return value

"""Where this SGLang resolves its arguments, and what it offers to read and to write a decision."""

from __future__ import annotations

import re

from sglang_guards.source.tree import Answer, Source, Unknown, probe

SERVER_ARGS = "sglang/srt/server_args.py"
OVERRIDES = "sglang/srt/arg_groups/overrides.py"
VIEW_FILES = ("sglang/srt/arg_groups/model_override_base.py", OVERRIDES)
PLUGINS = "sglang/srt/plugins"


def field_declared(source: Source, name: str) -> Answer:
    """Whether ServerArgs has a field; Unknown where the name or its flag's spelling stands for something else."""
    source.need(SERVER_ARGS)
    for rel in (SERVER_ARGS, *source.files("sglang/srt/arg_groups/fields", "*.py")):
        if line := source.line(rel, rf"^    {name}\s*:"):
            return Answer(True, f"{rel}:{line}", "the field is declared here")
    spelled = re.compile(rf"\b{name}\b|--{name.replace('_', '-')}\b")
    for rel in (SERVER_ARGS, *source.files("sglang/srt/arg_groups", "**/*.py")):
        if spelled.search(source.text(rel) or ""):
            raise Unknown(f"{name} is named in {rel}, but is no field")
    source.function(SERVER_ARGS, "ServerArgs")
    return Answer(False, None, f"no field {name}")


def declared_as(source: Source, name: str) -> str | None:
    """The field that takes a flag's spelling as an alias; None where there is none, Unknown where it is not seen."""
    spelling = f"--{name.replace('_', '-')}"
    files = (SERVER_ARGS, *source.files("sglang/srt/arg_groups/fields", "*.py"))
    words = re.compile(rf"aliases\s*=\s*[\[(][^\])]*[\"']{spelling}[\"']")
    texts = [source.text(rel) or "" for rel in files]
    named = [(text, place.start()) for text in texts for place in words.finditer(text)]
    if not named:
        return None
    text, place = named[0]
    fields = re.findall(r"^    ([a-z]\w*)\s*:(?!=)", text[:place], re.MULTILINE)
    if len(named) > 1 or not fields:
        raise Unknown(f"{spelling} is an alias of more than one field")
    return str(fields[-1])


def _method(source: Source, name: str) -> Answer:
    owner = source.function(source.need(SERVER_ARGS), "ServerArgs")
    code = source.maybe(SERVER_ARGS, f"ServerArgs.{name}")
    if code is None and re.search(rf"(?:def |^    ){name}(?:\(| *=)", source.text(SERVER_ARGS) or "", re.M):
        raise Unknown(f"{name} is named in server_args.py, but is no method of ServerArgs")
    return Answer(code is not None, (code or owner).where(), f"{'' if code else 'no '}ServerArgs.{name}")


def _defined(source: Source, files: tuple[str, ...], name: str) -> Answer:
    """A function at module level in one of the files; arg_groups does not exist before 0.5.14."""
    source.need(SERVER_ARGS)
    for rel in files:
        if line := source.line(rel, rf"^def {name}\b"):
            return Answer(True, f"{rel}:{line}", "defined here")
    named = [rel for rel in (SERVER_ARGS, *files) if re.search(rf"\b{name}\b", source.text(rel) or "")]
    if named:
        raise Unknown(f"{name} is named in {named[0]}, but defined elsewhere")
    return Answer(False, None, f"no {name}")


@probe("plugins_framework", "SGLang loads plugins (sglang.srt.plugins).")
def plugins_framework(source: Source) -> Answer:
    found = source.exists(PLUGINS)
    source.need(SERVER_ARGS)
    return Answer(found, PLUGINS if found else None)


@probe("resolves_in_post_init", "Arguments are resolved while ServerArgs is constructed.")
def resolves_in_post_init(source: Source) -> Answer:
    code = source.function(SERVER_ARGS, "ServerArgs.__post_init__")
    for word in ("_handle_model_specific_adjustments", "_run_resolution_pipeline"):
        if calls := source.naming(code, f".{word}("):
            return Answer(True, code.where(calls[0]), f"__post_init__ calls {word}")
    later = source.ask("has_resolve_once").value
    return Answer(False if later else None, code.where(), "__post_init__ resolves nothing")


@probe("has_resolve_once", "Resolution is a call of its own: ServerArgs.resolve_once.")
def has_resolve_once(source: Source) -> Answer:
    return _method(source, "resolve_once")


@probe("has_resolving_view", "Resolved values are read through arg_groups.overrides.resolving_view.")
def has_resolving_view(source: Source) -> Answer:
    return _defined(source, VIEW_FILES, "resolving_view")


@probe("has_declare_late_resolution", "A decision can be written with overrides.declare_late_resolution.")
def has_declare_late_resolution(source: Source) -> Answer:
    return _defined(source, (OVERRIDES,), "declare_late_resolution")


@probe("has_declare_resolution", "A decision can be written with overrides.declare_resolution.")
def has_declare_resolution(source: Source) -> Answer:
    return _defined(source, (OVERRIDES,), "declare_resolution")


@probe("has_override", "A decision can be written with ServerArgs.override(source, **fields).")
def has_override(source: Source) -> Answer:
    return _method(source, "override")


@probe(
    "check_server_args_exists", "ServerArgs.check_server_args exists: the place where launches are validated."
)
def check_server_args_exists(source: Source) -> Answer:
    return _method(source, "check_server_args")


@probe(
    "auto_enable_pass_exists",
    "All-reduce fusion is auto-enabled by a function of its own in arg_groups.overrides.",
)
def auto_enable_pass_exists(source: Source) -> Answer:
    return _defined(source, (OVERRIDES,), "_flashinfer_allreduce_fusion_auto_enable")

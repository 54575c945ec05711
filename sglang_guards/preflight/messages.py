"""What goes over the pipe between `check` and its worker: one request, one answer, as JSON."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

#: ``ready`` and ``import`` are the worker's own; ``died`` and ``timeout`` are said of a child that did not answer. The
#: others are `resolve.answer`'s: ``usage`` (SGLang's parser says no), ``config`` (the --config file), ``model`` (the
#: checkpoint), ``refused`` (SGLang's resolution says no, which is a finding), ``unknown type`` (of the model),
#: ``too early`` (a variable that was read at import was changed by the resolution: asked again of a
#: machine that imports the model later), ``trouble`` (our simulation failed).
Kind = Literal[
    "ready",
    "import",
    "died",
    "timeout",
    "facts",
    "usage",
    "config",
    "model",
    "refused",
    "unknown type",
    "too early",
    "trouble",
]


class _Ahead(TypedDict, total=False):
    #: Whether the machine has imported the model's modules before the launch was resolved.
    ahead: bool
    #: Variables that those modules read while they were imported.
    read_ahead: list[str]


class Request(_Ahead):
    """One launch to resolve."""

    args: list[str]
    #: Whether the words are those of ``sglang serve``, which takes arguments of its own.
    serve: bool
    env: dict[str, str]
    cwd: str
    gpu: dict[str, Any]
    model_config: str | None
    #: Fields to set otherwise than typed; None takes the flag away.
    edits: dict[str, Any]
    scratch: str
    timeout_s: float
    #: Seconds for building the model; 0: it is not built.
    build_s: float


class _Kind(TypedDict):
    kind: Kind


class Answer(_Kind, total=False):
    """What came of it; which keys are there follows from the kind."""

    message: str
    hint: str
    where: str
    trace: str
    #: The end of what the child printed.
    log: str
    #: The type that transformers does not know, or whose JSON alone was judged.
    model_type: str
    #: Name -> [value, origin, place].
    facts: dict[str, list[Any]]
    build: dict[str, Any] | None
    typed: dict[str, str]
    problems: list[str]
    draft_unknown: bool
    #: `Option.to_dict` of every option that the parser has.
    table: list[dict[str, Any]]
    from_config: list[str]
    merged: list[str]
    given: dict[str, Any]

"""A launch command as the operator types it, as words or as one text of a shell: what it starts, and with what."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from sglang_guards import shell_expand
from sglang_guards.errors import CouldNotCheck
from sglang_guards.preflight.reader import FORMS, Reader
from sglang_guards.preflight.wrappers import first_words, is_python, look_through
from sglang_guards.shell import ShellError

_OPERATORS = frozenset({"&&", "||", "|", ";", "&", ">", ">>", "2>", "2>&1", "<"})
#: Modules that `python -m` starts a server with; ours is the wrapper for releases without plugins.
_MODULES = frozenset({"sglang.launch_server", "sglang_guards.launch_server"})
#: Options of the Python interpreter that take the next word.
_PYTHON_VALUES = frozenset({"-W", "-X"})
#: What a host's variables say to SGLang, and a container does not inherit.
_HOST_ONLY = (
    "SGLANG_",
    "SGL_",
    "NCCL_",
    "CUDA_",
    "FLASHINFER_",
    "TRITON_",
    "TORCH",
    "PYTORCH_",
    "HIP_",
    "ROCR_",
)
#: Commands beside a launch that need no word.
_USUAL = frozenset(
    {
        "export",
        "set",
        "cd",
        "echo",
        "printf",
        "mkdir",
        "sleep",
        "ulimit",
        "unset",
        "source",
        ".",
        "true",
        "wait",
    }
    | {
        "module",
        "date",
        "exit",
        "trap",
        "shift",
        "local",
        "return",
        ":",
        "[",
        "[[",
        "test",
        "hostname",
        "nvidia-smi",
    }
)


@dataclass(frozen=True)
class Command:
    """`prefix` is everything up to SGLang's own arguments, `args` are those; `env` the assignments in front."""

    argv: tuple[str, ...]
    prefix: tuple[str, ...]
    args: tuple[str, ...]
    serve: bool
    env: tuple[tuple[str, str], ...] = ()
    unset: tuple[str, ...] = ()
    clear: bool = False
    contained: bool = False
    #: Python or `sglang` as typed, and the module that Python runs.
    program: str = ""
    module: str = ""
    #: Where it stands in its file; 0: not known.
    line: int = 0
    notes: tuple[str, ...] = ()
    #: Where a Python other than this one is started.
    places: tuple[str, ...] = ()
    #: What stays as typed because only the running shell knows it.
    unknown: tuple[str, ...] = ()
    devices: str | None = None
    mounts: tuple[tuple[str, str], ...] = ()
    cwd: str = ""
    #: Whether the text held redirections or more commands, which the corrected command leaves out.
    cut: bool = False

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """The environment that the launch would see."""
        env = {} if self.clear else {k: v for k, v in base.items() if k not in self.unset}
        if self.contained:
            env = {k: v for k, v in env.items() if not k.startswith(_HOST_ONLY)}
        return env | dict(self.env)

    def with_args(self, args: Sequence[str]) -> Command:
        """The same command with other arguments."""
        return replace(self, argv=(*self.prefix, *args), args=tuple(args))


def parse(argv: Sequence[str], env: Mapping[str, str] | None = None, nth: int | None = None) -> Command:
    """Take a launch command apart; raises `CouldNotCheck` for what is not one SGLang server launch.

    One word with blanks in it is a text, read as a shell would with the variables of `env`; `nth` chooses among
    several launches in it.
    """
    base = os.environ if env is None else env
    if len(argv) == 1 and any(c.isspace() for c in argv[0]):
        return of_text(argv[0], base, nth)
    command = of_words(argv, base)
    for word in argv:
        if word in _OPERATORS:
            raise CouldNotCheck(
                f"the command holds the shell operator {word!r}", "check one plain launch command at a time"
            )
    return command


def of_words(words: Sequence[str], base: Mapping[str, str]) -> Command:
    """One simple command, its words already told apart."""
    reader = Reader(tuple(words))
    look_through(reader)
    if reader.script is not None:
        return _inside(reader, base)
    program = reader.word
    module, serve = _server(reader)
    return Command(
        argv=reader.words,
        prefix=reader.words[: reader.at],
        args=reader.words[reader.at :],
        serve=serve,
        env=tuple(reader.env.items()),
        unset=tuple(reader.unset),
        clear=reader.clear,
        contained=reader.contained,
        program=program,
        module=module,
        notes=tuple(reader.notes),
        places=tuple(reader.places),
        devices=reader.devices,
        mounts=tuple(reader.mounts),
        cwd=reader.cwd,
    )


def _inside(reader: Reader, base: Mapping[str, str]) -> Command:
    """The launch in the text of ``bash -c``."""
    outer = Command(
        (), (), (), False, tuple(reader.env.items()), tuple(reader.unset), reader.clear, reader.contained
    )
    inner = _with_words(of_text(reader.script or "", outer.environment(base)), reader.script_words[1:])
    env = ({} if inner.clear else dict(reader.env)) | dict(inner.env)
    front = tuple(f"{k}={v}" for k, v in env.items() if (k, v) not in inner.env)
    return replace(
        inner,
        argv=(*front, *inner.argv),
        prefix=(*front, *inner.prefix),
        env=tuple(env.items()),
        unset=(*reader.unset, *inner.unset),
        clear=reader.clear or inner.clear,
        contained=reader.contained or inner.contained,
        notes=(*reader.notes, *inner.notes),
        places=(*reader.places, *inner.places),
        devices=inner.devices if inner.devices is not None else reader.devices,
        mounts=(*reader.mounts, *inner.mounts),
        cwd=inner.cwd or reader.cwd,
        cut=True,
    )


def _with_words(inner: Command, given: Sequence[str]) -> Command:
    """A launch that ends with the words which ``bash -c TEXT name WORDS`` hands on as "$@"."""
    if not given or "$@" not in inner.args:
        return inner
    at = inner.args.index("$@")
    made = inner.with_args((*inner.args[:at], *given, *inner.args[at + 1 :]))
    return replace(made, unknown=tuple(text for text in inner.unknown if text != "$@"))


def of_text(text: str, base: Mapping[str, str], nth: int | None = None) -> Command:
    """The launch in a text; other commands around it are named, a second launch is a question."""
    try:
        simple = shell_expand.run(text, base)
    except ShellError as error:
        raise CouldNotCheck(f"the launch command cannot be split into words: {error}") from None
    found: list[tuple[int, Command]] = []
    why: CouldNotCheck | None = None
    for at, one in enumerate(simple):
        try:
            found.append((at, of_words(_typed(one, base), base)))
        except CouldNotCheck as error:
            if why is None or (one.words and "sglang" in " ".join(first_words(one.words))):
                why = error
    if not found:
        if why is not None and (len(simple) == 1 or "sglang" in text):
            raise why
        raise CouldNotCheck(
            "the launch command is empty" if not simple else "the text holds no launch of SGLang",
            f"give {FORMS}",
        )
    if len(found) > 1 and nth is None:
        lines = ", ".join(str(simple[at].line) for at, _ in found)
        raise CouldNotCheck(
            f"the text holds {len(found)} launches, at lines {lines}", "choose one with --nth N"
        )
    if nth is not None and not 1 <= nth <= len(found):
        raise CouldNotCheck(f"there is no launch number {nth}: the text holds {len(found)}", "count from 1")
    at, command = found[(nth or 1) - 1]
    return _with_surroundings(command, simple, at, base)


def _typed(one: shell_expand.Simple, base: Mapping[str, str]) -> tuple[str, ...]:
    """The words of a simple command with every assignment in front that it would see."""
    changed = {k: v for k, v in one.env.items() if base.get(k) != v}
    return (*(f"{k}={v}" for k, v in (changed | dict(one.assignments)).items()), *one.words)


def _with_surroundings(
    command: Command, simple: Sequence[shell_expand.Simple], at: int, base: Mapping[str, str]
) -> Command:
    one = simple[at]
    if one.problem:
        raise CouldNotCheck(f"the launch command cannot be split into words: {one.problem}")
    for other in simple[at + 1 :]:
        if other.words and other.words[0].startswith("-"):
            flag = other.words[0].partition("=")[0]
            raise CouldNotCheck(
                f"the shell ends the launch before line {other.line}: {flag} begins a command of its own there and "
                "never reaches SGLang",
                "end every line but the last with a backslash and nothing behind it, with no comment between",
            )
    notes = [*command.notes]
    others = [o.words[0] for o in simple if o is not one and o.words and o.words[0] not in _USUAL]
    if others:
        names = ", ".join(dict.fromkeys(PurePath(name).name for name in others))
        notes.append(f"only the launch is judged, not what the text runs beside it: {names}")
    if one.nested:
        notes.append(
            "the launch stands inside a condition, a loop or a function: it is judged as if it is reached"
        )
    if one.sourced:
        notes.append(f"what {'; '.join(one.sourced)} sets is not known")
    if one.patterns:
        notes.append(f"a shell replaces {', '.join(one.patterns)} where files match; it is judged as written")
    if one.unknown_env:
        notes.append(f"the value of {', '.join(one.unknown_env)} is not known, and is judged as unset")
    return replace(
        command,
        notes=tuple(notes),
        unknown=(*command.unknown, *one.unknown),
        unset=(*command.unset, *(k for k in base if k not in one.env and k not in dict(command.env))),
        cwd=command.cwd or one.cwd,
        cut=bool(others or one.redirects or one.after == "&"),
        line=one.line,
    )


def _server(reader: Reader) -> tuple[str, bool]:
    """Move past the launcher: the module that Python runs, and True for ``sglang serve``."""
    name = reader.name
    rest = reader.words[reader.at + 1 :]
    if name == "sglang":
        if rest[:1] == ("serve",):
            reader.at += 2
            return "", True
        what = first_words(rest[:1])
        raise CouldNotCheck(f"'sglang {what[0] if what else ''}' does not start a server", f"give {FORMS}")
    if not is_python(reader.word):
        raise CouldNotCheck(f"{reader.word!r} is not a launch of SGLang", f"give {FORMS}")
    reader.at += 1
    while reader.word.startswith("-") and not reader.word.startswith("-m"):
        reader.at += 2 if reader.word in _PYTHON_VALUES else 1
    module = reader.word.removeprefix("-m")
    reader.at += 1
    if module == "" and reader.at < len(reader.words):
        module = reader.take()
    if module in _MODULES:
        return module, False
    if module in ("sglang", "sglang.cli.main") and reader.word == "serve":
        reader.at += 1
        return module, True
    if PurePath(module).name == "launch_server.py" and PurePath(module).parent.name == "sglang":
        return module, False
    raise CouldNotCheck(f"the command runs {module or 'no module'}, not SGLang's server", f"give {FORMS}")

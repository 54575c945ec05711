"""A launch command as the operator types it: taken apart, and put together again."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from sglang_guards.errors import CouldNotCheck

_FORMS = "python -m sglang.launch_server … or sglang serve …"
_OPERATORS = frozenset({"&&", "||", "|", ";", "&", ">", ">>", "2>", "2>&1", "<"})
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
#: Words that may stand in front of a command without changing what it does.
_WRAPPERS = frozenset({"nohup", "exec", "time"})
_CONTAINERS = frozenset({"docker", "podman", "kubectl", "srun", "apptainer", "singularity", "ssh", "ray"})
_SHELLS = frozenset({"sh", "bash", "zsh"})
_LAUNCHERS = frozenset({"torchrun", "accelerate", "mpirun", "deepspeed"})
#: Modules that `python -m` starts a server with; ours is the wrapper for releases without plugins.
_MODULES = frozenset({"sglang.launch_server", "sglang_guards.launch_server"})
#: Options of the Python interpreter that take the next word.
_PYTHON_VALUES = frozenset({"-W", "-X"})


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

    def environment(self, base: dict[str, str]) -> dict[str, str]:
        """The environment that the launch would see."""
        env = {} if self.clear else {k: v for k, v in base.items() if k not in self.unset}
        return env | dict(self.env)

    def with_args(self, args: Sequence[str]) -> Command:
        """The same command with other arguments."""
        return replace(self, argv=(*self.prefix, *args), args=tuple(args))


@dataclass
class _Reader:
    words: tuple[str, ...]
    at: int = 0
    env: dict[str, str] = field(default_factory=dict)
    unset: list[str] = field(default_factory=list)
    clear: bool = False

    @property
    def word(self) -> str:
        return self.words[self.at] if self.at < len(self.words) else ""

    def assignments(self) -> None:
        while _ASSIGNMENT.match(self.word):
            name, _, value = self.word.partition("=")
            self.env[name] = value
            self.at += 1

    def env_command(self) -> None:
        """``env [-i] [-u NAME] A=b``."""
        self.at += 1
        while self.word.startswith("-"):
            if self.word in ("-i", "-", "--ignore-environment"):
                self.clear = True
            elif self.word in ("-u", "--unset") and self.at + 1 < len(self.words):
                self.at += 1
                self.unset.append(self.word)
            elif self.word.startswith("--unset="):
                self.unset.append(self.word.partition("=")[2])
            else:
                raise CouldNotCheck(
                    f"env {self.word} in front of the command is not understood", "leave it out"
                )
            self.at += 1
        self.assignments()


def parse(argv: Sequence[str]) -> Command:
    """Take a launch command apart; raises `CouldNotCheck` for what is not one SGLang server launch."""
    words = _split(argv)
    if not words:
        raise CouldNotCheck("the launch command is empty", f"give it after --, such as {_FORMS}")
    reader = _Reader(words)
    reader.assignments()
    while reader.word in _WRAPPERS or PurePath(reader.word).name == "env":
        if reader.word in _WRAPPERS:
            reader.at += 1
            reader.assignments()
        else:
            reader.env_command()
    _refuse_foreign(reader.word, words)
    serve = _server(reader)
    for word in words:
        if word in _OPERATORS:
            raise CouldNotCheck(
                f"the command holds the shell operator {word!r}", "check one plain launch command at a time"
            )
    return Command(
        argv=words,
        prefix=words[: reader.at],
        args=words[reader.at :],
        serve=serve,
        env=tuple(reader.env.items()),
        unset=tuple(reader.unset),
        clear=reader.clear,
    )


def _split(argv: Sequence[str]) -> tuple[str, ...]:
    """The words; one quoted text is split as a shell would."""
    if len(argv) == 1 and any(c.isspace() for c in argv[0]):
        try:
            return tuple(shlex.split(argv[0].replace("\\\n", " "), comments=True))
        except ValueError as error:
            raise CouldNotCheck(f"the launch command cannot be split into words: {error}") from None
    return tuple(argv)


def _refuse_foreign(word: str, words: Sequence[str]) -> None:
    name = PurePath(word).name
    if name in _CONTAINERS:
        raise CouldNotCheck(
            f"the command starts with {name!r}; check reads the launch inside it, not the container or the scheduler",
            f"give the part from {_FORMS} on",
        )
    if name in _SHELLS:
        raise CouldNotCheck(f"the command is run through {name!r}", f"give the launch itself: {_FORMS}")
    if name in _LAUNCHERS:
        raise CouldNotCheck(
            f"{name!r} does not start an SGLang server; SGLang starts its own workers", f"use {_FORMS}"
        )
    if not name:
        raise CouldNotCheck("the command holds environment assignments only", f"give {_FORMS} after them")


def _server(reader: _Reader) -> bool:
    """Move past the launcher; True for ``sglang serve``."""
    name = PurePath(reader.word).name
    rest = reader.words[reader.at + 1 :]
    if name == "sglang":
        if rest[:1] == ("serve",):
            reader.at += 2
            return True
        raise CouldNotCheck(f"'sglang {rest[0] if rest else ''}' does not start a server", f"give {_FORMS}")
    if re.fullmatch(r"python[0-9.]*", name):
        reader.at += 1
        while reader.word.startswith("-") and not reader.word.startswith("-m"):
            reader.at += 2 if reader.word in _PYTHON_VALUES else 1
        module = reader.word.removeprefix("-m")
        reader.at += 1
        if module == "" and reader.at < len(reader.words):
            module = reader.word
            reader.at += 1
        if module in _MODULES:
            return False
        if PurePath(module).name == "launch_server.py" and PurePath(module).parent.name == "sglang":
            return False
        raise CouldNotCheck(
            f"the command runs {module or 'no module'}, not SGLang's server", f"give {_FORMS}"
        )
    raise CouldNotCheck(f"{reader.word!r} is not a launch of SGLang", f"give {_FORMS}")

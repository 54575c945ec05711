"""Programs that stand in front of a launch: what each passes on, and what it changes.

`Reader` walks over them word by word. What starts a Python other than this one (an environment, a container) is
written down in `places`, so that the report can say that another SGLang may start.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from sglang_guards.errors import CouldNotCheck
from sglang_guards.shell import NAME

FORMS = "python -m sglang.launch_server … or sglang serve …"


@dataclass(frozen=True)
class Wrapper:
    """A program that runs the command behind its own options: which of them take a word, and words before it."""

    values: frozenset[str] = frozenset()
    words: int = 0
    #: ``nice -10``: a number is an option by itself.
    numbers: bool = False


def _wrapper(values: str = "", words: int = 0, numbers: bool = False) -> Wrapper:
    return Wrapper(frozenset(values.split()), words, numbers)


_PLAIN: Mapping[str, Wrapper] = {
    "nohup": _wrapper(),
    "setsid": _wrapper(),
    "unbuffer": _wrapper(),
    "exec": _wrapper("-a"),
    "command": _wrapper(),
    "time": _wrapper("-f --format -o --output"),
    "nice": _wrapper("-n --adjustment", numbers=True),
    "ionice": _wrapper("-c --class -n --classdata"),
    "chrt": _wrapper("-T -P -D", words=1),
    "numactl": _wrapper(
        "-N --cpunodebind -m --membind -i --interleave -C --physcpubind -p --preferred -P --preferred-many "
        "-w --weighted-interleave"
    ),
    "taskset": _wrapper(words=1),
    "timeout": _wrapper("-k --kill-after -s --signal", words=1),
    "stdbuf": _wrapper("-i --input -o --output -e --error"),
    "doas": _wrapper("-u -C"),
}
_SUDO = _wrapper(
    "-u --user -g --group -h --host -p --prompt -C --close-from -D --chdir -R --chroot -T -r -t -U"
)
_CONDA = _wrapper("-n --name -p --prefix --cwd")
_UV = _wrapper(
    "-p --python --with --with-editable --with-requirements --extra --group --only-group --no-group --project "
    "--directory --env-file --index --index-url -i --default-index --extra-index-url --find-links -f --package "
    "--config-file --cache-dir --color --no-extra --python-platform --constraint -c"
)
_RUN = {"poetry", "pipenv", "pdm", "rye", "pixi"}
#: Options of ``docker run`` that take no word; all others do.
_DOCKER_SWITCHES = frozenset(
    {"--detach", "--interactive", "--tty", "--rm", "--init", "--privileged", "--read-only", "--publish-all"}
    | {
        "--quiet",
        "--no-healthcheck",
        "--sig-proxy",
        "--oom-kill-disable",
        "--disable-content-trust",
        "--replace",
    }
)
_DOCKER_SHORT = frozenset("ditPq")
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
_REFUSED = {
    "torchrun": "SGLang starts its own workers",
    "accelerate": "SGLang starts its own workers",
    "mpirun": "SGLang starts its own workers",
    "deepspeed": "SGLang starts its own workers",
}
_ELSEWHERE = frozenset({"ssh", "ray", "kubectl", "apptainer", "singularity", "sbatch", "enroot"})


@dataclass
class Reader:
    """The words of a command, how far they are read, and what the ones behind have changed."""

    words: tuple[str, ...]
    at: int = 0
    env: dict[str, str] = field(default_factory=dict)
    unset: list[str] = field(default_factory=list)
    clear: bool = False
    #: In a container: what the host sets for SGLang does not reach the launch.
    contained: bool = False
    notes: list[str] = field(default_factory=list)
    #: Where a Python other than this one is started, each as words for a sentence.
    places: list[str] = field(default_factory=list)
    #: GPUs that a container is given, as CUDA_VISIBLE_DEVICES would say it; None: all.
    devices: str | None = None
    mounts: list[tuple[str, str]] = field(default_factory=list)
    #: A text for a shell, in place of words.
    script: str | None = None
    script_words: tuple[str, ...] = ()
    cwd: str = ""

    @property
    def word(self) -> str:
        return self.words[self.at] if self.at < len(self.words) else ""

    @property
    def name(self) -> str:
        return PurePath(self.word).name

    def take(self) -> str:
        word = self.word
        self.at += 1
        return word

    def assignments(self) -> None:
        while (found := self.word.partition("="))[1] and NAME.fullmatch(found[0]):
            self.env[found[0]] = found[2]
            self.at += 1

    def options(self, wrapper: Wrapper) -> dict[str, list[str]]:
        """Step over a wrapper's options and words; the options by name, a switch with an empty text."""
        seen: dict[str, list[str]] = {}
        while self.word.startswith("-") and len(self.word) > 1:
            word = self.take()
            if word == "--":
                break
            name, sign, value = word.partition("=")
            if word.startswith("--"):
                taken = value if sign else self.take() if name in wrapper.values else ""
                seen.setdefault(name, []).append(taken)
            elif wrapper.numbers and word[1:].isdigit():
                continue
            else:
                self._short(word, wrapper, seen)
        self.at += wrapper.words
        return seen

    def _short(self, word: str, wrapper: Wrapper, seen: dict[str, list[str]]) -> None:
        """``-E``, ``-oL``, ``-n 5``, ``-it``."""
        for at in range(1, len(word)):
            name = f"-{word[at]}"
            if name in wrapper.values:
                seen.setdefault(name, []).append(word[at + 1 :] or self.take())
                return
            seen.setdefault(name, []).append("")


def look_through(reader: Reader) -> None:
    """Move to the program that starts the server, or set `script`; raises `CouldNotCheck` for what cannot be seen."""
    reader.assignments()
    while True:
        name = reader.name
        step = _STEPS.get(name)
        if name in _PLAIN:
            reader.take()
            reader.options(_PLAIN[name])
        elif step is not None:
            reader.take()
            step(reader)
            if reader.script is not None:
                return
        elif name in _RUN and reader.words[reader.at + 1 : reader.at + 2] == ("run",):
            reader.at += 2
            reader.places.append(f"the environment of {name}")
            reader.options(Wrapper())
        else:
            break
        reader.assignments()
    _refuse(reader)


def _refuse(reader: Reader) -> None:
    name = reader.name
    if name in _REFUSED:
        raise CouldNotCheck(f"{name!r} does not start an SGLang server; {_REFUSED[name]}", f"use {FORMS}")
    if name in _ELSEWHERE:
        raise CouldNotCheck(
            f"the command starts with {name!r}; check reads the launch inside it, not what carries it elsewhere",
            f"give the part from {FORMS} on",
        )
    if name:
        return
    if not reader.words:
        raise CouldNotCheck("the launch command is empty", f"give it after --, such as {FORMS}")
    if reader.at and all("=" in word for word in reader.words):
        raise CouldNotCheck("the command holds environment assignments only", f"give {FORMS} after them")
    raise CouldNotCheck(f"nothing follows {reader.words[reader.at - 1]!r}", f"give {FORMS} after it")


def _env(reader: Reader) -> None:
    """``env [-i] [-u NAME] [-C DIR] A=b``."""
    while reader.word.startswith("-"):
        word = reader.take()
        name, sign, value = word.partition("=")
        if word in ("-i", "-", "--ignore-environment"):
            reader.clear = True
            reader.env.clear()
        elif name in ("-u", "--unset"):
            gone = value if sign else reader.take()
            reader.unset.append(gone)
            reader.env.pop(gone, None)
        elif word.startswith("-u") and not word.startswith("--"):
            reader.unset.append(word[2:])
            reader.env.pop(word[2:], None)
        elif name in ("-C", "--chdir"):
            reader.cwd = value if sign else reader.take()
        elif word in ("-v", "--debug"):
            continue
        else:
            raise CouldNotCheck(f"env {word} in front of the command is not understood", "leave it out")
    reader.assignments()
    if reader.word.startswith("-"):
        raise CouldNotCheck(
            f"env takes its options before the assignments, so {reader.word} would be the program to run",
            "write env -u NAME A=b …",
        )


def _sudo(reader: Reader) -> None:
    before = dict(reader.env)
    seen = reader.options(_SUDO)
    kept = seen.get("-E", []) or ("" in seen.get("--preserve-env", []) and [""])
    names = {name for value in seen.get("--preserve-env", []) for name in value.split(",")}
    dropped = [] if kept else [name for name in before if name not in names]
    for name in dropped:
        del reader.env[name]
    if dropped:
        reader.notes.append(
            f"sudo does not pass on {', '.join(dropped)} (write it behind sudo, or use sudo -E)"
        )
    reader.cwd = next(iter(seen.get("-D", []) + seen.get("--chdir", [])), reader.cwd)
    if reader.word == "":
        return
    reader.assignments()


def _conda(reader: Reader) -> None:
    program = PurePath(reader.words[reader.at - 1]).name
    if reader.word != "run":
        raise CouldNotCheck(f"'{program} {reader.word}' does not start a server", f"give {FORMS}")
    reader.take()
    seen = reader.options(_CONDA)
    names = [v for k in ("-n", "--name", "-p", "--prefix") for v in seen.get(k, ())]
    reader.cwd = next(iter(seen.get("--cwd", ())), reader.cwd)
    reader.places.append(f"the conda environment {names[0]}" if names else "the base conda environment")


def _uv(reader: Reader) -> None:
    if reader.word != "run":
        raise CouldNotCheck(f"'uv {reader.word}' does not start a server", f"give {FORMS}")
    reader.take()
    start = reader.at
    seen = reader.options(_UV)
    extra = [v for v in seen.get("--with", ()) if re.match(r"sglang\b", v)]
    reader.places.append(f"the environment of uv run{' --with ' + extra[0] if extra else ''}")
    reader.cwd = next(iter(seen.get("--directory", ())), reader.cwd)
    if "-m" in seen or "--module" in seen:  # uv run -m MODULE is python -m MODULE
        flag = next(i for i in range(reader.at - 1, start - 1, -1) if reader.words[i] in ("-m", "--module"))
        reader.words = (*reader.words[:flag], "python", "-m", *reader.words[flag + 1 :])
        reader.at = flag


def _srun(reader: Reader) -> None:
    """srun has over a hundred options: the launch begins at the first word that can start one."""
    starts = {*_PLAIN, *_STEPS, *_RUN, "sglang"}
    while reader.word and PurePath(reader.word).name not in starts and not is_python(reader.word):
        reader.at += 1
    reader.env.setdefault("SLURM_PROCID", "0")
    reader.notes.append("srun starts one process for each task; judged is one of them")


def _shell(reader: Reader) -> None:
    shell = PurePath(reader.words[reader.at - 1]).name
    found = False
    while reader.word.startswith(("-", "+")) and not found:
        word = reader.take()
        if word in ("-o", "+o", "-O", "--rcfile", "--init-file"):
            reader.take()
        found = not word.startswith("--") and "c" in word[1:]
        if word == "--login" or "l" in word[1:].partition("c")[0]:
            reader.notes.append(f"{shell} reads the login profile first; what that sets is not known")
    if not found:
        raise CouldNotCheck(
            f"the command is run through {shell!r}, from a file",
            "give the file: sglang-guards check --launch-file FILE",
        )
    reader.script = reader.take()
    reader.script_words = reader.words[reader.at :]


def _docker(reader: Reader) -> None:
    program = PurePath(reader.words[reader.at - 1]).name
    if reader.word == "container":
        reader.take()
    what = reader.take()
    if what not in ("run", "exec"):
        raise CouldNotCheck(
            f"the command starts with '{program} {what}', which holds no launch",
            "give the compose file: sglang-guards check --launch-file FILE"
            if what in ("compose", "stack")
            else f"give {program} run IMAGE …, or the part from {FORMS} on",
        )
    inherited = dict(reader.env)
    reader.env.clear()
    reader.contained = True
    entry = _docker_options(reader, inherited)
    image = reader.take()
    if not image:
        raise CouldNotCheck(f"'{program} {what}' names no image", f"give {program} run IMAGE …")
    kind = "image" if what == "run" else "container"
    reader.places.append(f"that of the {kind} {image}")
    if entry is not None:
        reader.words = (*reader.words[: reader.at], entry, *reader.words[reader.at :])
    if not reader.word or reader.word.startswith("-"):
        raise CouldNotCheck(
            f"what the image {image} runs is decided by its own entry point", f"give {FORMS} behind the image"
        )


def _docker_options(reader: Reader, host: Mapping[str, str]) -> str | None:
    """The options of ``docker run``; the entry point, where one is named."""
    entry = None
    while reader.word.startswith("-") and len(reader.word) > 1:
        word = reader.take()
        name, sign, value = word.partition("=")
        if not word.startswith("--"):
            letters = word[1:]
            while letters and letters[0] in _DOCKER_SHORT:
                letters = letters[1:]
            if not letters:
                continue
            name, value = f"-{letters[0]}", letters[1:].removeprefix("=") or reader.take()
        elif not sign:
            value = "" if name in _DOCKER_SWITCHES else reader.take()
        if name in ("-e", "--env"):
            key, has, text = value.partition("=")
            reader.env |= {key: text} if has else {key: host[key]} if key in host else {}
        elif name == "--env-file":
            _env_file(reader, value)
        elif name == "--gpus":
            reader.devices = _gpus(value)
        elif name in ("-v", "--volume"):
            outside, _, inside = value.partition(":")
            reader.mounts.append((inside.partition(":")[0], outside))
        elif name == "--mount":
            keys = dict(part.partition("=")[::2] for part in value.split(","))
            target = keys.get("target") or keys.get("dst") or keys.get("destination") or ""
            reader.mounts.append((target, keys.get("source") or keys.get("src") or ""))
        elif name == "--entrypoint":
            entry = value
    return entry


def _gpus(value: str) -> str | None:
    """``--gpus`` as CUDA_VISIBLE_DEVICES would say it: ``all``, a number, or ``device=0,1``."""
    value = value.strip("\"'")
    if value.isdigit():
        return ",".join(map(str, range(int(value))))
    found = re.search(r"device=([\w,-]+)", value)
    count = re.search(r"count=(\d+)", value)
    return found[1] if found else ",".join(map(str, range(int(count[1])))) if count else None


def _env_file(reader: Reader, path: str) -> None:
    try:
        lines = Path(path).expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        reader.notes.append(f"the environment file {path} cannot be read here; what it sets is not known")
        return
    for line in lines:
        name, sign, value = line.strip().partition("=")
        if sign and NAME.fullmatch(name):
            reader.env[name] = value


def is_python(word: str) -> bool:
    """Whether a word names a Python interpreter."""
    return re.fullmatch(r"python[0-9.]*", PurePath(word).name) is not None


_STEPS: dict[str, Callable[[Reader], None]] = {
    "env": _env,
    "sudo": _sudo,
    "conda": _conda,
    "mamba": _conda,
    "micromamba": _conda,
    "uv": _uv,
    "srun": _srun,
    **dict.fromkeys(("docker", "podman", "nerdctl"), _docker),
    **dict.fromkeys(_SHELLS, _shell),
}


def first_words(words: Sequence[str]) -> tuple[str, ...]:
    """The head of a command, for messages: no value of a flag is in it."""
    head = []
    for word in words:
        if word.startswith("-"):
            break
        head.append(word)
    return tuple(head[:4])

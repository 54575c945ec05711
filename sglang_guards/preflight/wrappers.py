"""Programs that stand in front of a launch: what each passes on, and what it changes.

`Reader` walks over them word by word. What starts a Python other than this one (an environment, a container) is
written down in `places`, so that the report can say that another SGLang may start.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath

from sglang_guards.errors import CouldNotCheck
from sglang_guards.preflight import containers
from sglang_guards.preflight.reader import FORMS, Reader, Wrapper, wrapper

_PLAIN: Mapping[str, Wrapper] = {
    "nohup": wrapper(),
    "setsid": wrapper(),
    "unbuffer": wrapper(),
    "exec": wrapper("-a"),
    "command": wrapper(),
    "time": wrapper("-f --format -o --output"),
    "nice": wrapper("-n --adjustment", numbers=True),
    "ionice": wrapper("-c --class -n --classdata"),
    "chrt": wrapper("-T -P -D", words=1),
    "numactl": wrapper(
        "-N --cpunodebind -m --membind -i --interleave -C --physcpubind -p --preferred -P --preferred-many "
        "-w --weighted-interleave"
    ),
    "taskset": wrapper(words=1),
    "timeout": wrapper("-k --kill-after -s --signal", words=1),
    "stdbuf": wrapper("-i --input -o --output -e --error"),
    "doas": wrapper("-u -C"),
}
_SUDO = wrapper(
    "-u --user -g --group -h --host -p --prompt -C --close-from -D --chdir -R --chroot -T -r -t -U"
)
_CONDA = wrapper("-n --name -p --prefix --cwd")
_UV = wrapper(
    "-p --python --with --with-editable --with-requirements --extra --group --only-group --no-group --project "
    "--directory --env-file --index --index-url -i --default-index --extra-index-url --find-links -f --package "
    "--config-file --cache-dir --color --no-extra --python-platform --constraint -c"
)
_RUN = {"poetry", "pipenv", "pdm", "rye", "pixi"}
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
_REFUSED = {
    "torchrun": "SGLang starts its own workers",
    "accelerate": "SGLang starts its own workers",
    "mpirun": "SGLang starts its own workers",
    "deepspeed": "SGLang starts its own workers",
}
_ELSEWHERE = frozenset({"ssh", "ray", "kubectl", "apptainer", "singularity", "sbatch", "enroot"})


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
    **dict.fromkeys(("docker", "podman", "nerdctl"), containers.look_into),
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

"""``docker run`` and its like: the launch behind the image, and the variables, GPUs and folders that it is given."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path, PurePath

from sglang_guards.errors import CouldNotCheck
from sglang_guards.preflight.reader import FORMS, Reader
from sglang_guards.shell import NAME

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


def look_into(reader: Reader) -> None:
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

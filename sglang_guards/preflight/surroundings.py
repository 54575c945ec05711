"""What a command sets for itself: which SGLang it starts, which GPUs it sees, where its files lie."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from sglang_guards import source
from sglang_guards.errors import CouldNotCheck
from sglang_guards.launch.gpus import Gpu
from sglang_guards.preflight.command_line import Command

#: By which variables a process is given fewer GPUs than the machine has.
_VISIBLE = {
    "cuda": ("CUDA_VISIBLE_DEVICES",),
    "hip": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
}


def visible_gpus(gpu: Gpu, command: Command, base: Mapping[str, str]) -> tuple[Gpu, list[str]]:
    """The GPUs that the launch is left with, and a line that says so."""
    env = command.environment(base)
    said = [(name, env[name]) for name in _VISIBLE.get(gpu.platform, ()) if name in env]
    if not gpu.measured:  # this machine's own setting is about this machine
        said = [(name, value) for name, value in said if base.get(name) != value or name in dict(command.env)]
    if command.devices is not None:
        said.append(("--gpus", command.devices))
    left, notes = gpu.count, []
    for name, value in said:
        seen = _seen(value, gpu.count)
        if seen == 0:
            raise CouldNotCheck(f"{name}={value} leaves this launch no GPU", "name the GPUs that it may use")
        if seen < gpu.count:
            left = min(left, seen)
            notes.append(f"{name}={value} leaves the launch {seen} of {gpu.count} GPUs")
    return replace(gpu, count=left), notes


def _seen(value: str, count: int) -> int:
    """How many devices a list names: CUDA stops at the first that is not there, and takes none twice."""
    found: list[str] = []
    for entry in value.split(","):
        entry = entry.strip()
        if not entry or (entry.lstrip("-").isdigit() and not 0 <= int(entry) < count):
            break
        if entry in found:
            return 0
        found.append(entry)
    return min(len(found), count)


def judged_source(command: Command, base: Mapping[str, str]) -> tuple[source.Source, list[str]]:
    """The SGLang that the command's PYTHONPATH starts, else the installed one."""
    path = command.environment(base).get("PYTHONPATH", "")
    if path != os.environ.get("PYTHONPATH", "") and not command.contained:
        for entry in filter(None, path.split(os.pathsep)):
            root = (Path(command.cwd or ".") / Path(entry).expanduser()).absolute() / "sglang"
            found = source.find(root) if (root / "__init__.py").is_file() else None
            if found is not None:
                return found, [f"judged is SGLang {found.version}, which PYTHONPATH={entry} starts"]
    found = source.find()
    if found is None:
        raise CouldNotCheck(
            "SGLang is not installed in this Python environment",
            "install sglang-guards beside the SGLang that serves, and run check there",
        )
    return found, []


def other_sglang(command: Command, base: Mapping[str, str], judged: source.Source) -> list[str]:
    """Lines that say that the command starts, or may start, another SGLang than the one judged."""
    here = f"judged is {judged.version} in {judged.root}"
    another = "this command starts another SGLang than the one judged"
    if command.places:
        same = re.compile(rf"[:=]v?{re.escape(judged.version)}(?![\w.])")  # an image's tag, or sglang==0.5.15
        return [f"{another}: {place}; {here}" for place in command.places if not same.search(place)]
    program = _program(command, base)
    if program is None or _same_python(program):
        return []
    if not program.exists():
        return [f"{another}: that of {program}, not here; {here}"]
    other = next((s for s in map(source.find, _packages_of(program)) if s is not None), None)
    if other is not None and other.root.resolve() == judged.root.resolve():
        return []
    what = f"{other.version} in {other.root}" if other is not None else "which was not found"
    return [f"{another}: that of {program}, {what}; {here}"]


def _program(command: Command, base: Mapping[str, str]) -> Path | None:
    """The interpreter (or `sglang`) where the command says which: by its path, or by a PATH of its own."""
    if "/" in command.program:
        return (Path(command.cwd or ".") / command.program).expanduser().absolute()
    path = command.environment(base).get("PATH")
    if command.contained or path is None or path == base.get("PATH"):
        return None
    found = shutil.which(command.program, path=path)
    return Path(found).absolute() if found else None


def _same_python(program: Path) -> bool:
    """Whether a program of some ``bin`` folder runs in this Python's environment."""
    prefix = program.parent.parent
    if prefix.resolve() == Path(sys.prefix).resolve():
        return True
    is_environment = (prefix / "pyvenv.cfg").exists() or sys.prefix != sys.base_prefix
    return not is_environment and program.resolve() == Path(sys.executable).resolve()


def _packages_of(program: Path) -> Iterator[Path]:
    prefix = program.parent.parent
    for pattern in (
        "lib/python3*/site-packages",
        "lib64/python3*/site-packages",
        "lib/python3*/dist-packages",
    ):
        for folder in sorted(prefix.glob(pattern)):
            if (folder / "sglang" / "__init__.py").is_file():
                yield folder / "sglang"


def mounted_config(command: Command) -> Path | None:
    """The config of a model that a container sees under a mounted folder, on this side of the mount."""
    path = _model_path(command.args, command.serve)
    for inside, outside in command.mounts:
        rest = path.removeprefix(inside.rstrip("/"))
        if inside and path.startswith(inside.rstrip("/")) and (not rest or rest.startswith("/")):
            found = Path(os.path.expanduser(os.path.expandvars(outside)) + rest)
            if (found / "config.json").is_file():
                return found
    return None


def _model_path(args: tuple[str, ...], serve: bool) -> str:
    for at, word in enumerate(args):
        name, sign, value = word.partition("=")
        if name in ("--model-path", "--model"):
            return value if sign else next(iter(args[at + 1 : at + 2]), "")
    return args[0] if serve and args and not args[0].startswith("-") else ""

"""Whose no it is: SGLang's own, which is a finding, or one that only this check met, which is none.

A refusal counts as SGLang's when SGLang's tree raised it on purpose. What another major version of transformers
raises or makes SGLang raise, what a plugin, a stand-in, our recursion or a file that is not here causes, says nothing
about the launch on the machine that serves.
"""

from __future__ import annotations

import sys
import sysconfig
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import TracebackType

from packaging.version import InvalidVersion, Version

from sglang_guards.build import blame, stand_ins
from sglang_guards.source import distribution

#: What SGLang raises when it means no. Everything else is more likely a gap in the simulation.
_REFUSALS = (ValueError, AssertionError, NotImplementedError, RuntimeError)
_NOT_REFUSALS = (UnicodeError, ImportError, RecursionError)
#: RuntimeErrors of torch that say that there is no real GPU here.
_NO_GPU = (
    "nvidia driver",
    "not compiled with cuda",
    "no cuda gpus",
    "cuda error",
    "hip error",
    "torch not compiled",
)
#: Where a checkpoint's config is read: transformers itself, and the files of SGLang that call it.
_READS_CONFIG = ("/transformers/", "/sglang/srt/utils/hf_transformers")


@dataclass(frozen=True)
class Doubt:
    """Why a refusal is not SGLang's own, and what to do about it."""

    reason: str
    hint: str = ""


def doubt(error: BaseException, plugins: tuple[str, ...] = ()) -> Doubt | None:
    """None when SGLang itself refuses; else why that cannot be said. `plugins` are loaded ones."""
    chain = tuple(blame.chain(error))
    if any(isinstance(one, RecursionError) for one in chain):
        return Doubt("Python's recursion limit was reached while SGLang resolved the launch")
    if any(isinstance(one, MemoryError) for one in chain):
        return Doubt("memory ran out while SGLang resolved the launch")
    if stand_ins.involved(error):
        return Doubt("SGLang's resolution asks a kernel package that is not here")
    missing = next((one for one in chain if isinstance(one, OSError)), None)
    if missing is not None:
        name = f" {missing.filename}" if missing.filename else f": {missing}"
        return Doubt(
            f"SGLang's resolution reads something of the target machine that is not here{name}",
            "run check on the machine that serves, or put the file where the launch names it",
        )
    if not isinstance(error, _REFUSALS) or isinstance(error, _NOT_REFUSALS):
        return Doubt("")
    if isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in _NO_GPU):
        return Doubt("")
    package = next(filter(None, map(_package_of, chain)), None)
    if package == "sglang_guards":
        return Doubt("the simulation raised it")
    for plugin in plugins:
        if package == plugin or any(_through(one, f"/{plugin}/") for one in chain):
            return Doubt(
                f"the plugin {plugin} raised it, not SGLang", "run check without --plugins to leave it out"
            )
    return _other_transformers(chain)


def _other_transformers(chain: tuple[BaseException, ...]) -> Doubt | None:
    """Another major version than the release requires reads configs differently."""
    wanted, have = required("transformers"), _installed("transformers")
    if not wanted or not have or Version(wanted).major == Version(have).major:
        return None
    if not any(_through(one, place) for one in chain for place in _READS_CONFIG):
        return None
    return Doubt(
        f"the checkpoint's config was read with transformers {have}, and this SGLang requires {wanted}",
        f"run check in an environment with transformers {wanted}",
    )


def required(package: str) -> str | None:
    """The version of a package that the installed SGLang, or a fork of it, pins in its metadata."""
    module = sys.modules.get("sglang")
    for folder in getattr(module, "__path__", ()):
        owner = distribution.owner(Path(folder))
        pin = owner.pin(package) if owner is not None else None
        return pin if pin and _is_version(pin) else None
    return None


def _installed(package: str) -> str | None:
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
    return version if _is_version(version) else None


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True


def _files(error: BaseException) -> list[str]:
    """Files of the frames, outermost first."""
    files = []
    step: TracebackType | None = error.__traceback__
    while step is not None:
        files.append(step.tb_frame.f_code.co_filename)
        step = step.tb_next
    return files


def _through(error: BaseException, part: str) -> bool:
    return any(part in file for file in _files(error))


_STDLIB = str(Path(sysconfig.get_path("stdlib")).resolve())


def _package_of(error: BaseException) -> str | None:
    """The package whose code raised it; None for SGLang's own, and for the standard library called by SGLang."""
    for file in reversed(_files(error)):
        if file.startswith("<"):
            continue
        path = str(Path(file).resolve())
        if path.startswith(_STDLIB) and "site-packages" not in path:
            continue
        return _name(path)
    return None


def _name(path: str) -> str | None:
    for entry in sorted(sys.path, key=len, reverse=True):
        root = str(Path(entry or ".").resolve()).rstrip("/") + "/"
        if path.startswith(root):
            name = path[len(root) :].partition("/")[0].removesuffix(".py")
            return None if name == "sglang" else name
    return None

"""Other releases of SGLang: unpacked ones on this machine, fetching them with pip, and which of them has a flag.

Nothing here runs SGLang, and only `published` and `fetch` may reach a package index.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path

from packaging.version import InvalidVersion, Version

from sglang_guards.preflight.options import Option

#: The oldest release that is fetched: the last one without the fused-sum flag.
OLDEST = Version("0.5.9")
#: Seconds for a look at the index, and for one wheel (5 to 20 MB).
_INDEX_S, _WHEEL_S = 60, 600
#: From 0.5.11 on the wheels are for CPython 3.11 on Linux only. They are unpacked, never installed, so that any
#: interpreter on any machine may ask for them.
_PYTHON = ("--python-version", "3.11", "--only-binary=:all:")
#: Plugins of others may want a later one.
_LATER_PYTHON = ("--python-version", "3.12", "--only-binary=:all:")
_PLATFORM = ("--platform", "manylinux_2_34_x86_64", "--platform", "any")


class FetchFailed(Exception):
    """pip found no wheel, or what it found could not be unpacked; the text says which."""


def trees_root() -> Path:
    """The folder with one sub-folder per unpacked release, each holding `sglang/`; most machines have none."""
    default = Path.home() / ".cache" / "sglang-guards" / "trees"
    return Path(os.environ.get("SGLANG_GUARDS_TREES") or default)


def unpacked(root: Path | None = None) -> dict[str, Path]:
    """Release -> its folder, oldest first, for every release below `root` (default: `trees_root`)."""
    return {str(version): srt.parents[1] for version, srt in _trees(root) if srt.is_dir()}


def published() -> tuple[str, ...]:
    """The final releases from `OLDEST` on that pip sees, oldest first; raises `FetchFailed` without an index."""
    command = [sys.executable, "-m", "pip", "index", "versions", "sglang", *_PYTHON, *_PLATFORM]
    lines = _pip(command, _INDEX_S).splitlines()
    line = next((line for line in lines if line.startswith("Available versions: ")), "")
    versions = sorted(map(Version, filter(None, line.removeprefix("Available versions: ").split(", "))))
    return tuple(str(version) for version in versions if version >= OLDEST and not version.is_prerelease)


def fetch(release: str, dest: Path, holds: str = "sglang/srt") -> str:
    """Unpack one release into `dest`; a run that is broken off leaves nothing that looks like a tree.

    A fork is given as ``name==version``, and its folder is called so. The wheel must hold the folder `holds`.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f".{release}.", dir=dest) as folder:
        work = Path(folder)
        wheel = _download(release, work)
        tree = work / "tree"
        try:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(tree)
        except (zipfile.BadZipFile, OSError) as why:
            raise FetchFailed(f"{wheel.name} cannot be unpacked: {why}") from why
        if not (tree / holds).is_dir():
            raise FetchFailed(f"{wheel.name} holds no {holds}")
        _put(tree, dest / release, holds)
        size = wheel.stat().st_size / 1e6
    return f"unpacked ({size:.0f} MB in {time.monotonic() - began:.0f} s)"


def _download(release: str, folder: Path) -> Path:
    """The wheel of a release, in `folder`. The second try names the platform, for machines that are not Linux."""
    python = () if sys.version_info[:2] == (3, 11) else _PYTHON
    requirement = release if "==" in release else f"sglang=={release}"
    said = ""
    for extra in (python, (*_PYTHON, *_PLATFORM), (*_LATER_PYTHON, *_PLATFORM)):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
        try:
            _pip([*command, *extra, requirement], _WHEEL_S)
        except FetchFailed as why:
            said = str(why)
            continue
        wheels = sorted(folder.glob("*.whl"))
        if len(wheels) == 1:
            return wheels[0]
        said = "pip left no wheel"
    raise FetchFailed(said)


def _pip(command: Sequence[str], timeout_s: float) -> str:
    """What pip prints; raises `FetchFailed` with its last line."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise FetchFailed(f"pip did not end within {timeout_s:.0f} s") from None
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["pip failed without a word"]
        raise FetchFailed(lines[-1].removeprefix("ERROR: "))
    return done.stdout


def _put(tree: Path, place: Path, holds: str) -> None:
    """Move the tree into place in one step; of two runs at once the first one wins."""
    if place.is_dir() and not (place / holds).is_dir():
        shutil.rmtree(place)
    try:
        tree.rename(place)
    except OSError as why:
        if not (place / holds).is_dir():
            raise FetchFailed(f"{place} cannot be written: {why}") from why


def help_with(flag: str, installed: str, table: Sequence[Option]) -> str:
    """One sentence of help about an unknown flag; empty when nothing is known."""
    return that_have(flag, installed) or _alike(flag, table)


def that_have(flag: str, installed: str) -> str:
    """Which other releases on this machine have a flag; empty when none is known to."""
    having = [str(v) for v, folder in _trees() if str(v) != installed and _knows(folder, flag)]
    if not having:
        return ""
    first, last = having[0], having[-1]
    return f"SGLang {first} has it" if first == last else f"SGLang {first} to {last} have it"


def _alike(flag: str, table: Sequence[Option]) -> str:
    names = [name for option in table for name in option.names]
    near = difflib.get_close_matches(flag, names, n=2, cutoff=0.75)
    return f"did you mean {' or '.join(near)}?" if near else ""


def _trees(root: Path | None = None) -> list[tuple[Version, Path]]:
    found = []
    try:
        entries = list((root or trees_root()).iterdir())
    except OSError:
        return []
    for entry in entries:
        try:
            found.append((Version(entry.name), entry / "sglang" / "srt"))
        except InvalidVersion:
            continue
    return sorted(found)


def _knows(srt: Path, flag: str) -> bool:
    """Whether a release declares the flag: as text, or as a field that its parser derives flags from."""
    field = re.escape(flag.removeprefix("--").replace("-", "_"))
    declared = re.compile(rf"""["']{re.escape(flag)}["']|^ {{4}}{field}\s*:""", re.MULTILINE)
    files = [srt / "server_args.py", *(srt / "arg_groups").glob("**/*.py")]
    for file in files:
        try:
            if declared.search(file.read_text(encoding="utf-8")):
                return True
        except OSError:
            continue
    return False

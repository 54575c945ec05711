#!/usr/bin/env python3
"""Fetch SGLang releases for the tests: download the wheel, unpack it, import nothing.

    python tools/trees.py 0.5.15 0.5.23      these releases
    python tools/trees.py --ci               the ones that CI runs SGLang of
    python tools/trees.py --all              every release that the tests know

Each lands in <dest>/<release>/, by default where tests/trees.py looks. Releases that are there already are left
alone. Exit code 1 when a release could not be fetched.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.trees import RELEASES, trees_root

#: One release of each shape of SGLang's argument resolution and plugin loading.
CI_RELEASES = ("0.5.10.post1", "0.5.11", "0.5.13.post1", "0.5.15", "0.5.18", "0.5.19", "0.5.20", "0.5.23")
#: From 0.5.11 on the wheels are for CPython 3.11 on Linux only. They are unpacked, never installed, so that any
#: interpreter on any machine may ask for them.
_PYTHON = ("--python-version", "3.11", "--only-binary=:all:")
_PLATFORM = ("--platform", "manylinux_2_34_x86_64", "--platform", "any")


class FetchFailed(Exception):
    """pip found no wheel, or what it found could not be unpacked; the text says which."""


def main(argv: Sequence[str] | None = None) -> int:
    options = _options(argv)
    releases = RELEASES if options.all else CI_RELEASES if options.ci else tuple(options.release)
    dest: Path = options.dest
    dest.mkdir(parents=True, exist_ok=True)
    width = max(map(len, releases))
    failed = 0
    for release in releases:
        try:
            said = "present" if (dest / release / "sglang").is_dir() else fetch(release, dest)
        except FetchFailed as why:
            failed += 1
            said = f"failed: {why}"
        print(f"{release:<{width}}  {said}", flush=True)
    return 1 if failed else 0


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("release", nargs="*", type=_release, help="such as 0.5.15")
    parser.add_argument("--all", action="store_true", help=f"all {len(RELEASES)} that the tests know")
    parser.add_argument("--ci", action="store_true", help=", ".join(CI_RELEASES))
    parser.add_argument("--dest", type=Path, default=trees_root(), help="default: %(default)s")
    options = parser.parse_args(argv)
    if bool(options.release) + options.all + options.ci != 1:
        parser.error("name releases, or give --ci, or --all")
    return options


def _release(text: str) -> str:
    if not re.fullmatch(r"\d+(\.\d+)*((a|b|rc|\.post|\.dev)\d+)*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no release of SGLang")
    return text


def fetch(release: str, dest: Path) -> str:
    """Unpack one release into `dest`; a run that is broken off leaves nothing that looks like a tree."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f".{release}.", dir=dest) as folder:
        work = Path(folder)
        wheel = _download(release, work)
        unpacked = work / "tree"
        try:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(unpacked)
        except (zipfile.BadZipFile, OSError) as why:
            raise FetchFailed(f"{wheel.name} cannot be unpacked: {why}") from why
        if not (unpacked / "sglang" / "srt").is_dir():
            raise FetchFailed(f"{wheel.name} holds no sglang/srt")
        _put(unpacked, dest / release)
        size = wheel.stat().st_size / 1e6
    return f"unpacked ({size:.0f} MB in {time.monotonic() - began:.0f} s)"


def _download(release: str, folder: Path) -> Path:
    """The wheel of a release, in `folder`. The second try names the platform, for machines that are not Linux."""
    python = () if sys.version_info[:2] == (3, 11) else _PYTHON
    said = ""
    for extra in (python, (*_PYTHON, *_PLATFORM)):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
        done = subprocess.run([*command, *extra, f"sglang=={release}"], capture_output=True, text=True)
        wheels = sorted(folder.glob("*.whl"))
        if done.returncode == 0 and len(wheels) == 1:
            return wheels[0]
        lines = (done.stderr or done.stdout).strip().splitlines() or ["pip left no wheel"]
        said = lines[-1].removeprefix("ERROR: ")
    raise FetchFailed(said)


def _put(unpacked: Path, place: Path) -> None:
    """Move the tree into place in one step; of two runs at once the first one wins."""
    if place.is_dir() and not (place / "sglang").is_dir():
        shutil.rmtree(place)
    try:
        unpacked.rename(place)
    except OSError as why:
        if not (place / "sglang").is_dir():
            raise FetchFailed(f"{place} cannot be written: {why}") from why


if __name__ == "__main__":
    sys.exit(main())

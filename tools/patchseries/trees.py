"""Where the releases come from: unpacked wheels, or wheels themselves; and patched trees to run tests in."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from tools.patchseries.manifest import PACKAGE

#: Folder with one sub-folder per release, each holding `sglang/` (filled by tools/trees.py).
DEFAULT = Path(os.environ.get("SGLANG_GUARDS_TREES", Path.home() / ".cache" / "sglang-guards" / "trees"))


class Missing(Exception):
    """A release is not on this machine."""


def read(
    release: str, paths: Iterable[str], *, trees: Path = DEFAULT, wheels: Path | None = None
) -> dict[str, bytes]:
    """Those of the repository paths that the release's wheel has."""
    names = [path for path in paths if path.startswith(PACKAGE)]
    if wheels is not None:
        found = sorted(wheels.glob(f"sglang-{release}-*.whl"))
        if not found:
            raise Missing(f"no wheel of SGLang {release} in {wheels}")
        with zipfile.ZipFile(found[0]) as wheel:
            inside = set(wheel.namelist())
            return {
                p: wheel.read(p.removeprefix("python/")) for p in names if p.removeprefix("python/") in inside
            }
    root = tree(release, trees)
    files = {path: root / path.removeprefix("python/") for path in names}
    return {path: file.read_bytes() for path, file in files.items() if file.is_file()}


def tree(release: str, trees: Path = DEFAULT) -> Path:
    root = trees / release
    if not (root / "sglang/srt").is_dir():
        raise Missing(f"SGLang {release} is not unpacked in {trees}; run: python tools/trees.py {release}")
    return root


def overlay(root: Path, files: Mapping[str, bytes], out: Path) -> Path:
    """A folder that imports as the release at `root` with `files` in place of its own; the rest are links."""
    mine = {
        Path(name.removeprefix("python/")): content
        for name, content in files.items()
        if name.startswith(PACKAGE)
    }
    folders = {parent for name in mine for parent in name.parents if parent != Path(".")}
    for folder in sorted(folders):
        (out / folder).mkdir(parents=True, exist_ok=True)
        for entry in (root / folder).iterdir() if (root / folder).is_dir() else ():
            inside = folder / entry.name
            if inside not in folders and inside not in mine:
                (out / inside).symlink_to(entry.resolve())
    for name, content in mine.items():
        (out / name).write_bytes(content)
    for path, content in files.items():
        if not path.startswith(PACKAGE):
            target = out / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    return out

"""Which distribution an SGLang tree came with: SGLang's own, or a fork that brings a package of the same name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

UPSTREAM = "sglang"
#: A file that every SGLang has, as a wheel's RECORD lists it.
_FILE = "sglang/srt/server_args.py"


@dataclass(frozen=True)
class Distribution:
    """Name and version as pip shows them, and the requirements of its metadata."""

    name: str
    version: str
    requires: tuple[str, ...] = ()

    @property
    def is_fork(self) -> bool:
        return self.name.lower() != UPSTREAM

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    def pin(self, package: str) -> str | None:
        """The version that it requires of a package (``==`` or ``>=``), if any."""
        wanted = package.replace("_", "-").lower()
        for line in self.requires:
            found = re.match(r"([\w.-]+)(?:\[[\w,-]+\])?\s*\(?(?:==|>=|~=)\s*([\w.+]+)", line)
            if found and found[1].replace("_", "-").lower() == wanted and "extra ==" not in line:
                return found[2]
        return None


@cache
def owner(root: Path) -> Distribution | None:
    """The distribution that the package folder `root` belongs to; None for a checkout, which has none."""
    site = root.parent
    infos = [info for info in site.glob("*sglang*.dist-info") if _lists(info)]
    if not infos:
        infos = [info for info in site.glob("*.dist-info") if _names(info) and _lists(info)]
    if len(infos) > 1:  # one was installed over the other
        infos = [info for info in infos if _recorded_size(info) == _size(root)] or infos
        infos.sort(key=lambda info: (info / "RECORD").stat().st_mtime)
    return _read(infos[-1]) if infos else None


def _names(info: Path) -> bool:
    """Whether it says that it brings `sglang`; reading every RECORD of an environment would take too long."""
    try:
        return "sglang" in (info / "top_level.txt").read_text(encoding="utf-8", errors="replace").split()
    except OSError:
        return False


def _lists(info: Path) -> bool:
    return _recorded_size(info) is not None


def _recorded_size(info: Path) -> int | None:
    try:
        text = (info / "RECORD").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(rf"^{re.escape(_FILE)},[^,]*,(\d*)$", text, re.MULTILINE)
    return None if found is None else int(found[1] or 0)


def _size(root: Path) -> int | None:
    try:
        return (root / "srt" / "server_args.py").stat().st_size
    except OSError:
        return None


def _read(info: Path) -> Distribution | None:
    try:
        text = (info / "METADATA").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    head = text.partition("\n\n")[0]
    fields = dict(re.findall(r"^(Name|Version): (.*)$", head, re.MULTILINE))
    if not {"Name", "Version"} <= set(fields):
        return None
    return Distribution(fields["Name"].strip(), fields["Version"].strip(), tuple(_requirements(head)))


def _requirements(head: str) -> Iterator[str]:
    yield from re.findall(r"^Requires-Dist: (.*)$", head, re.MULTILINE)


def upgrade(root: Path | None, release: str) -> str:
    """What to install: that release of SGLang, or, for a fork, a version of it that carries the same change."""
    found = owner(root) if root is not None else None
    if found is None or not found.is_fork:
        return f"upgrade to SGLang {release}"
    return f"upgrade {found.name} to a version that carries the change of SGLang {release}"

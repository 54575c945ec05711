"""Which series is for a tree, where its files lie, and what would come out: nothing here changes a tree."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tools.patchseries import gitobjects
from tools.patchseries.gitobjects import GitError
from tools.patchseries.manifest import PACKAGE, Patch, Series

_FAILED = re.compile(r"patch failed: (?P<file>\S+):(?P<line>\d+)")
_GONE = re.compile(r"error: (?P<file>\S+): (?:does not exist in index|No such file or directory)")
_EXISTS = re.compile(r"error: (?P<file>\S+): already exists")


class Refused(Exception):
    """The tree does not fit, or a run stops; `left` says how it leaves the tree."""

    def __init__(self, reason: str, left: str = "nothing was changed") -> None:
        super().__init__(reason)
        self.left = left


def kind_of(target: Path) -> str:
    """«checkout» (a git checkout of SGLang), «package» (a folder with sglang/ in it, or sglang/ itself)."""
    if (target / "python/sglang/srt").is_dir():
        return "checkout" if (target / ".git").exists() else "tarball"
    if any((place / "srt").is_dir() for place in (target / "sglang", target)):
        return "package"
    raise Refused(f"{target} is neither a checkout of SGLang nor a folder with the package sglang in it")


def package_of(target: Path) -> Path:
    return target / "sglang" if (target / "sglang/srt").is_dir() else target


def choose(every: list[Series], target: Path) -> Series:
    """The series whose files the tree has; else the one for the version that the tree names."""
    for one in every:
        found = {name: content for name, content in present(one, target).items() if name.startswith(PACKAGE)}
        if gitobjects.tree(found) == one.base:
            return one
    version = version_of(target)
    for one in every:
        if version in one.releases:
            return one
    names = ", ".join(one.name for one in every)
    raise Refused(
        f"{target} is SGLang {version or 'of unknown version'}; name a series with --series ({names})"
    )


def present(series: Series, target: Path) -> dict[str, bytes]:
    """The files of the series that exist in the tree, under their repository paths."""
    found = {name: place(target, name) for name in series.files}
    return {name: path.read_bytes() for name, path in found.items() if path is not None and path.is_file()}


def place(target: Path, name: str) -> Path | None:
    """Where a repository path lies in the tree; None for tests of an installed package."""
    if kind_of(target) != "package":
        return target / name
    return package_of(target) / name.removeprefix(PACKAGE) if name.startswith(PACKAGE) else None


def version_of(target: Path) -> str | None:
    package = target / "python/sglang" if kind_of(target) != "package" else package_of(target)
    for name in ("_version.py", "version.py"):
        text = (package / name).read_text(encoding="utf-8") if (package / name).is_file() else ""
        if found := re.search(
            r"""^(?:__version__|version)\b.*?=\s*['"]([\d.]+(?:post\d+)?)['"]""", text, re.M
        ):
            return found[1]
    infos = sorted(package.parent.glob("sglang-*.dist-info"))
    if infos:
        return infos[0].name.removeprefix("sglang-").removesuffix(".dist-info")
    if (target / ".git").exists():
        try:
            tag = gitobjects.run(target, "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*").strip()
        except GitError:
            return None
        return tag.removeprefix("v")
    return None


# -- what would come out, in a scratch repository -----------------------------------------------------------------


def rehearse(series: Series, files: Mapping[str, bytes], *, tests: bool) -> dict[str, bytes]:
    """The files after the series. Raises Refused with patch, file and hunk where it does not fit."""
    with tempfile.TemporaryDirectory(prefix="sglang-guards-") as name:
        folder = Path(name)
        gitobjects.new_repository(folder, files, "as found")
        for patch in series.patches:
            if patch.only_tests and not tests:
                continue
            skip = [] if tests else ["--exclude=test/*"]
            try:
                gitobjects.plain(folder, "apply", "--index", "--whitespace=nowarn", *skip, str(patch.path))
            except GitError as error:
                raise Refused(_explained(patch, str(error), folder)) from None
        wanted = [name for name in series.files if tests or name.startswith(PACKAGE)]
        return {name: (folder / name).read_bytes() for name in wanted}


def _explained(patch: Patch, said: str, folder: Path) -> str:
    """Patch, file, hunk and reason, one line each."""
    lines = [f"{patch.path.parent.name}/{patch.path.name} does not fit:"]
    for found in _GONE.finditer(said):
        lines.append(f"  {found['file']}: the file is missing")
    for found in _EXISTS.finditer(said):
        lines.append(f"  {found['file']}: the file exists already")
    for found in _FAILED.finditer(said):
        name, line = found["file"], int(found["line"])
        hunks = hunks_of(patch.text, name)
        number = next((n for n, hunk in enumerate(hunks, 1) if hunk.startswith(f"@@ -{line},")), 0)
        hunk = hunks[number - 1] if number else ""
        lines.append(
            f"  {name}, hunk {number or '?'} of {len(hunks)} ({hunk.splitlines()[0] if hunk else line}): "
            + _reason(hunk, (folder / name).read_bytes())
        )
    return "\n".join(lines if len(lines) > 1 else [*lines, "  " + said.replace("\n", "\n  ")])


def hunks_of(text: str, name: str) -> list[str]:
    """The hunks of one file of a patch."""
    parts = re.split(r"^(?=diff --git )", text, flags=re.MULTILINE)
    mine = "".join(part for part in parts if part.startswith(f"diff --git a/{name} "))
    hunks = re.split(r"^(?=@@ )", mine, flags=re.MULTILINE)[1:]
    return [hunk.split("\n-- \n")[0] for hunk in hunks]


def _reason(hunk: str, content: bytes) -> str:
    if b"\r\n" in content:
        return "the file has CRLF line ends, the patch has LF"
    body = hunk.splitlines()[1:]
    after = "\n".join(line[1:] for line in body if line[:1] in (" ", "+"))
    if after and after in content.decode("utf-8", "replace"):
        return "the hunk is applied already"
    return "the lines around it differ"

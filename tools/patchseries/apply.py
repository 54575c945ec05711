"""Apply a series to a git checkout (git am) or to an installed package, or change nothing and say why."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from patchseries import gitobjects
from patchseries.gitobjects import GitError
from patchseries.manifest import PACKAGE, Patch, Series

BACKUP = ".sglang-guards-patches"
_FAILED = re.compile(r"patch failed: (?P<file>\S+):(?P<line>\d+)")
_GONE = re.compile(r"error: (?P<file>\S+): (?:does not exist in index|No such file or directory)")
_EXISTS = re.compile(r"error: (?P<file>\S+): already exists")


class Refused(Exception):
    """The tree does not fit. Nothing was changed."""


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


# -- a git checkout -----------------------------------------------------------------------------------------------


def to_checkout(series: Series, target: Path) -> str:
    """git am of the whole series; the commit to go back to."""
    if (target / ".git/rebase-apply").exists() or (target / ".git/rebase-merge").exists():
        raise Refused(f"{target} is in the middle of a git am or rebase")
    dirty = gitobjects.run(target, "status", "--porcelain", "--untracked-files=no").splitlines()
    if dirty:
        raise Refused(f"{target} has uncommitted changes:\n" + "\n".join(f"  {line}" for line in dirty[:10]))
    new = [name for name in series.files if (target / name).exists() and name.startswith("test/")]
    tracked = gitobjects.committed(target, series.files)
    loose = [name for name in new if name not in tracked]
    if loose:
        raise Refused("untracked files are in the way:\n" + "\n".join(f"  {name}" for name in loose))
    expected = rehearse(series, tracked, tests=True)
    before = gitobjects.run(target, "rev-parse", "HEAD").strip()
    try:
        gitobjects.run(target, *_identity(target), "am", "--no-3way", "--keep-cr", *map(str, _paths(series)))
    except GitError as error:
        gitobjects.run(target, "am", "--abort")
        raise Refused(f"git am: {error}") from None
    if gitobjects.committed(target, series.files) != expected:
        gitobjects.run(target, "reset", "--keep", before)
        raise Refused("git am gave other files than the rehearsal; went back to the commit before")
    return before


def _paths(series: Series) -> list[Path]:
    return [patch.path for patch in series.patches]


def _identity(target: Path) -> list[str]:
    """git am needs a committer; lend one where none is configured."""
    try:
        gitobjects.run(target, "var", "GIT_COMMITTER_IDENT")
    except GitError:
        return ["-c", "user.name=sglang-guards", "-c", "user.email=sglang-guards@localhost"]
    return []


# -- an installed package or an unpacked wheel ---------------------------------------------------------------------


def to_package(series: Series, target: Path) -> Path:
    """Patch the package in place and keep the originals beside it; returns the backup folder."""
    backup = package_of(target) / BACKUP
    if backup.exists():
        applied = json.loads((backup / "state.json").read_text(encoding="utf-8"))["series"]
        raise Refused(f"{applied} is applied already; undo it first: apply --reverse {target}")
    before = {n: c for n, c in present(series, target).items() if n.startswith(PACKAGE)}
    after = rehearse(series, before, tests=False)
    changed = {name: content for name, content in after.items() if before.get(name) != content}
    gitobjects.write(backup / "original", {name: before[name] for name in changed if name in before})
    state = {
        "series": series.name,
        "files": {name: [gitobjects.blob(before[name]), gitobjects.blob(changed[name])] for name in changed},
    }
    (backup / "state.json").write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
    try:
        for name, content in changed.items():
            _replace(target, name, content)
    except OSError as error:
        _restore(target, backup, list(changed))
        raise Refused(f"could not write: {error}") from None
    return backup


def from_package(target: Path) -> str:
    """Put the originals back; the name of the series that was applied."""
    backup = package_of(target) / BACKUP
    if not backup.is_dir():
        raise Refused(f"no series was applied to {target} by this tool")
    state = json.loads((backup / "state.json").read_text(encoding="utf-8"))
    for name, (_, after) in state["files"].items():
        path = place(target, name)
        if path is None or not path.is_file() or gitobjects.blob(path.read_bytes()) != after:
            raise Refused(f"  {name}: the file was changed after the series was applied")
    _restore(target, backup, list(state["files"]))
    return str(state["series"])


def _restore(target: Path, backup: Path, names: list[str]) -> None:
    for name in names:
        _replace(target, name, (backup / "original" / name).read_bytes())
    shutil.rmtree(backup)


def _replace(target: Path, name: str, content: bytes) -> None:
    """Write beside and rename: a reader sees the old file or the new one, and links stay untouched."""
    path = place(target, name)
    assert path is not None
    mode = path.stat().st_mode & 0o777
    beside = path.with_name(path.name + ".sglang-guards")
    beside.write_bytes(content)
    os.chmod(beside, mode)
    os.replace(beside, path)

"""Write series from edited repositories, and bring a series to the next release."""

from __future__ import annotations

import re
from pathlib import Path

from tools.patchseries import gitobjects, trees
from tools.patchseries.gitobjects import GitError
from tools.patchseries.manifest import PATCHES, Series, load, read_patch, shape


def format_patches(repository: Path, out: Path) -> list[Path]:
    """The commits after the tag `base` as patch files, byte for byte the same on every machine."""
    out.mkdir(parents=True, exist_ok=True)
    options = ("--zero-commit", "--no-signature", "--no-numbered", "--full-index", "--no-stat")
    gitobjects.plain(repository, "format-patch", "-q", *options, "-o", str(out), "base..HEAD")
    return sorted(out.glob("*.patch"))


def refresh(repository: Path, name: str, releases: tuple[str, ...], folder: Path = PATCHES) -> Series:
    """Replace patches/<name> by the commits of the repository after its tag `base`."""
    target = folder / name
    for old in target.glob("*.patch"):
        old.unlink()
    patches = tuple(read_patch(path) for path in format_patches(repository, target))
    touched = sorted({path for patch in patches for path in patch.files})
    return Series(
        name=name,
        releases=releases,
        tag=f"v{releases[-1]}",
        shape=shape(releases[-1]),
        base=gitobjects.tree(gitobjects.committed(repository, touched, "base")),
        tree=gitobjects.tree(gitobjects.committed(repository, touched)),
        patches=patches,
    )


def scratch(series: Series, release: str, out: Path, root: Path = trees.DEFAULT) -> str:
    """A repository in `out` to edit: the files of `release`, with as much of the series as fits.

    Returns what is left to do. The old release is in the same repository, so that git can merge by three-way; the
    result is a draft that a human reviews, and `refresh` writes.
    """
    old = trees.read(series.releases[-1], series.files, trees=root)
    gitobjects.new_repository(out, old, f"SGLang {series.releases[-1]}")
    gitobjects.plain(out, "am", "--no-3way", *(str(patch.path) for patch in series.patches))
    commits = gitobjects.plain(out, "rev-list", "--reverse", "base..HEAD").split()
    new = trees.read(release, series.files, trees=root)
    gitobjects.plain(out, "checkout", "-q", "-B", "main", "base")
    for path in old:
        (out / path).unlink()
    gitobjects.write(out, new)
    gitobjects.plain(out, "add", "-A", "-f")
    gitobjects.plain(out, "commit", "-q", "--allow-empty", "-m", f"SGLang {release}")
    gitobjects.plain(out, "tag", "-f", "base")
    for number, commit in enumerate(commits, 1):
        try:
            gitobjects.plain(out, "cherry-pick", commit)
        except GitError as error:
            conflicts = re.findall(r"CONFLICT .*", str(error)) or [str(error)]
            then = "git cherry-pick --continue"
            if commits[number:]:
                then += f" && git cherry-pick {' '.join(commits[number:])}"
            lines = [
                f"patch {number} of {len(commits)} needs a hand in {out}:",
                *(f"  {c}" for c in conflicts),
            ]
            return "\n".join([*lines, f"then: {then}"])
    return f"all {len(commits)} patches fit; review {out}, then run refresh"


def replaced(series: Series, folder: Path = PATCHES) -> list[Series]:
    """The manifest with this series in it."""
    known = load(folder) if (folder / "manifest.toml").is_file() else []
    return [one for one in known if one.name != series.name] + [series]

"""Trees that a series is applied to: a git checkout and an installed package, made from the files it touches."""

from __future__ import annotations

from pathlib import Path

from sglang_guards.preflight.releases import trees_root
from tests.trees import tree
from tools.patchseries import gitobjects
from tools.patchseries.manifest import Series, load, selected

ROOT = Path(__file__).resolve().parents[2]

__all__ = ["EVERY", "gitobjects", "trees_root"]

EVERY = load()


def series(release: str) -> Series:
    return selected(EVERY, [release])[0]


def base_files(release: str) -> dict[str, bytes]:
    """The files of a release that its series touches, under repository paths."""
    root = tree(release)
    files = {name: root / name.removeprefix("python/") for name in series(release).package_files}
    return {name: path.read_bytes() for name, path in files.items() if path.is_file()}


def checkout(folder: Path, release: str, **changed: bytes | None) -> Path:
    """A clean git checkout; `changed` replaces files by their last name, None leaves them out."""
    files = {**base_files(release), "README.md": b"SGLang\n"}
    gitobjects.new_repository(folder, changed_in(files, changed), f"SGLang {release}")
    return folder


def package(folder: Path, release: str, **changed: bytes | None) -> Path:
    """A site-packages with the package in it."""
    files = changed_in(base_files(release), changed)
    gitobjects.write(folder, {name.removeprefix("python/"): content for name, content in files.items()})
    (folder / f"sglang-{release}.dist-info").mkdir()
    return folder


def changed_in(files: dict[str, bytes], changed: dict[str, bytes | None]) -> dict[str, bytes]:
    out = dict(files)
    for short, content in changed.items():
        name = next(name for name in files if name.endswith(f"/{short}.py"))
        if content is None:
            del out[name]
        else:
            out[name] = content
    return out


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file with its content, git's own left out."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".git" not in path.relative_to(folder).parts
    }

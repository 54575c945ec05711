"""File operations that are on the disk when they return, and a lock that a killed run cannot leave behind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has no such lock; two runs at once are the user's care there
    fcntl = None  # type: ignore[assignment]

#: What is behind the name of a file while it is written.
BESIDE = ".sglang-guards"


class Busy(Exception):
    """Another run holds the lock."""


def write(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Beside it first, then renamed: a reader sees the old file or the new one, and links stay untouched."""
    folder(path.parent)
    beside = path.with_name(path.name + BESIDE)
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        while content:
            content = content[os.write(handle, content) :]
        os.chmod(beside, mode)
        os.fsync(handle)
    finally:
        os.close(handle)
    os.replace(beside, path)
    _sync(path.parent)


def folder(path: Path) -> None:
    """The folder and those above it."""
    if not path.is_dir():
        folder(path.parent)
        os.mkdir(path)
        _sync(path.parent)


def remove(path: Path) -> None:
    """One file, where it is there."""
    if path.is_symlink() or path.exists():
        os.unlink(path)
        _sync(path.parent)


def remove_folder(path: Path) -> None:
    if path.is_dir():
        for entry in sorted(path.iterdir()):
            if entry.is_dir() and not entry.is_symlink():
                remove_folder(entry)
            else:
                os.unlink(entry)
        os.rmdir(path)
        _sync(path.parent)


def _sync(path: Path) -> None:
    """A rename or a removal is on the disk when its folder is."""
    if os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def locked(path: Path) -> Iterator[int]:
    """Hold the folder against other runs. The handle may be given to a child, which then holds it, too."""
    if fcntl is None:
        yield -1
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Busy(f"another run is at work on {path}") from None
        yield handle
    finally:
        os.close(handle)

"""Git's object ids computed from bytes, and a git that no user configuration can change."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

#: Settings that keep `git am` and `git format-patch` reproducible whatever the user has configured.
_PLAIN = (
    "core.autocrlf=false", "core.hooksPath=/dev/null", "commit.gpgsign=false", "diff.algorithm=myers",
    "am.threeWay=false", "user.name=sglang-guards", "user.email=sglang-guards@localhost",
)  # fmt: skip


class GitError(RuntimeError):
    """git ended with an error; the text is what it said."""


def run(
    folder: Path, *args: str, text: str | None = None, env: Mapping[str, str] | None = None, keep: int = -1
) -> str:
    """git with the user's configuration. `keep` is an open file that stays open for git, a lock for instance."""
    done = subprocess.run(
        ["git", "-C", str(folder), *args],
        input=text,
        capture_output=True,
        text=True,
        env={**os.environ, "LC_ALL": "C", **(env or {})},
        pass_fds=(keep,) if keep >= 0 else (),
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip()
        raise GitError(said or f"git {args[-1]} ended with {done.returncode}")
    return done.stdout


def plain(folder: Path, *args: str, text: str | None = None) -> str:
    """git without the user's configuration and outside any repository around `folder`."""
    env = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    settings = [part for setting in _PLAIN for part in ("-c", setting)]
    return run(folder, *settings, *args, text=text, env=env)


def blob(content: bytes) -> str:
    return _hashed("blob", content)


def tree(files: Mapping[str, bytes]) -> str:
    """Id of the git tree that holds exactly these files, all of them with mode 100644."""
    folders: dict[str, dict[str, bytes]] = {}
    entries: list[tuple[str, bytes]] = []
    for path, content in files.items():
        head, _, rest = path.partition("/")
        if rest:
            folders.setdefault(head, {})[rest] = content
        else:
            entries.append((path, b"100644 " + path.encode() + b"\0" + bytes.fromhex(blob(content))))
    for name, inside in folders.items():
        entries.append((name + "/", b"40000 " + name.encode() + b"\0" + bytes.fromhex(tree(inside))))
    return _hashed("tree", b"".join(entry for _, entry in sorted(entries)))


def _hashed(kind: str, content: bytes) -> str:
    return hashlib.sha1(f"{kind} {len(content)}\0".encode() + content).hexdigest()


def new_repository(folder: Path, files: Mapping[str, bytes], message: str) -> None:
    """A repository in `folder` whose only commit, tagged `base`, holds `files`."""
    folder.mkdir(parents=True, exist_ok=True)
    plain(folder, "init", "-q", "-b", "main", "--template=")
    write(folder, files)
    plain(folder, "add", "-A", "-f")
    plain(folder, "commit", "-q", "--allow-empty", "-m", message)
    plain(folder, "tag", "base")


def write(folder: Path, files: Mapping[str, bytes]) -> None:
    for path, content in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def committed(folder: Path, paths: Sequence[str], commit: str = "HEAD") -> dict[str, bytes]:
    """Content of those of `paths` that the commit has."""
    found = {}
    for path in paths:
        done = subprocess.run(["git", "-C", str(folder), "show", f"{commit}:{path}"], capture_output=True)
        if done.returncode == 0:
            found[path] = done.stdout
    return found

"""A series on a git checkout: `git am`, with a note in the git folder while it runs, so that a killed run is known.

The note names the commit before. The next run takes back what `git am` has done so far and starts again, or keeps
it where all of it was done; `apply --reverse` takes it back.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tools.patchseries import durable, gitobjects
from tools.patchseries.apply import Refused, rehearse
from tools.patchseries.gitobjects import GitError
from tools.patchseries.manifest import Series

NOTE = "sglang-guards-patches.json"


@dataclass(frozen=True)
class Note:
    series: str
    before: str
    subjects: list[str]


def apply(target: Path, choose: Callable[[], Series]) -> tuple[Series, str]:
    """git am of the whole series; the series and the commit to go back to."""
    folder = _git_folder(target)
    with durable.locked(folder) as lock:
        note = read(folder)
        if note and _commits(target, note) == note.subjects and not _in_am(target):
            # killed after the last commit: leave it as the run would have
            series = choose()
            if series.name == note.series:
                _verify(target, series, note.before)
                durable.remove(folder / NOTE)
                return series, note.before
        if note:
            _go_back(target, folder, note)
        try:
            series = choose()
            _must_be_clean(target, series)
            rehearse(series, gitobjects.committed(target, series.files), tests=True)
        except Refused as reason:
            if note:
                reason.left = (
                    f"the interrupted run with {note.series} was taken back, nothing else was changed"
                )
            raise
        before = gitobjects.run(target, "rev-parse", "HEAD").strip()
        note = Note(series.name, before, [patch.subject for patch in series.patches])
        durable.write(folder / NOTE, json.dumps(vars(note), indent=1).encode() + b"\n")
        try:
            paths = [str(patch.path) for patch in series.patches]
            gitobjects.run(target, *_identity(target), "am", "--no-3way", "--keep-cr", *paths, keep=lock)
        except GitError as error:
            _go_back(target, folder, note)
            raise Refused(f"git am: {error}") from None
        try:
            _verify(target, series, before)
        except Refused:
            _go_back(target, folder, note)
            raise
        durable.remove(folder / NOTE)
        return series, before


def reverse(target: Path) -> str:
    """Take back what an interrupted run has done; a finished one is undone with git."""
    folder = _git_folder(target)
    with durable.locked(folder):
        note = read(folder)
        if note is None:
            raise Refused(f"{target} is a git checkout: undo with git (apply printed the command)")
        _go_back(target, folder, note)
        return f"the interrupted run with {note.series} undone"


def read(folder: Path) -> Note | None:
    path = folder / NOTE
    return Note(**json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None


def _go_back(target: Path, folder: Path, note: Note) -> None:
    """To the commit before, where everything since then is this tool's; the note goes last."""
    made = _commits(target, note)
    ours = made is not None and made == note.subjects[: len(made)]
    if _in_am(target):
        if not ours or _number_in_am(target) != len(note.subjects):
            raise Refused(f"{target} is in the middle of a git am or rebase that is not this tool's")
        _git(target, note, "am", "--abort")
        made = _commits(target, note)
    if ours and made:
        # git am --abort stays where HEAD moved after its last note of its own; status brings the index up to date
        gitobjects.run(target, "status", "--porcelain", "--untracked-files=no")
        _git(target, note, "reset", "--keep", note.before)
    durable.remove(folder / NOTE)


def _git(target: Path, note: Note, *args: str) -> None:
    try:
        gitobjects.run(target, *args)
    except GitError as error:
        made = len(_commits(target, note) or [])
        raise Refused(
            f"an interrupted run could not be taken back: git {args[0]}: {error}",
            f"{made} of {len(note.subjects)} patches of {note.series} are committed in {target}, on top of "
            f"{note.before[:12]}; set right what git names, then apply again or apply --reverse",
        ) from None


def _commits(target: Path, note: Note) -> list[str] | None:
    """Subjects of the commits since the one before, oldest first; None where HEAD does not come from it."""
    try:
        gitobjects.run(target, "merge-base", "--is-ancestor", note.before, "HEAD")
    except GitError:
        return None
    return gitobjects.run(target, "log", "--reverse", "--format=%s", f"{note.before}..HEAD").splitlines()


def _verify(target: Path, series: Series, before: str) -> None:
    expected = rehearse(series, gitobjects.committed(target, series.files, before), tests=True)
    if gitobjects.committed(target, series.files) != expected:
        raise Refused("git am gave other files than the rehearsal; went back to the commit before")


def _must_be_clean(target: Path, series: Series) -> None:
    if _in_am(target):
        raise Refused(f"{target} is in the middle of a git am or rebase")
    dirty = gitobjects.run(target, "status", "--porcelain", "--untracked-files=no").splitlines()
    if dirty:
        raise Refused(f"{target} has uncommitted changes:\n" + "\n".join(f"  {line}" for line in dirty[:10]))
    new = [name for name in series.files if (target / name).exists() and name.startswith("test/")]
    tracked = gitobjects.committed(target, series.files)
    loose = [name for name in new if name not in tracked]
    if loose:
        raise Refused("untracked files are in the way:\n" + "\n".join(f"  {name}" for name in loose))


def _git_folder(target: Path) -> Path:
    return _git_path(target, ".")


def _git_path(target: Path, name: str) -> Path:
    """Also right in a worktree, whose .git is a file."""
    return (target / gitobjects.run(target, "rev-parse", "--git-path", name).strip()).resolve()


def _in_am(target: Path) -> bool:
    return any(_git_path(target, name).exists() for name in ("rebase-apply", "rebase-merge"))


def _number_in_am(target: Path) -> int:
    last = _git_path(target, "rebase-apply") / "last"
    text = last.read_text(encoding="utf-8").strip() if last.is_file() else ""
    return int(text) if text.isdigit() else 0


def _identity(target: Path) -> list[str]:
    """git am needs a committer; lend one where none is configured."""
    try:
        gitobjects.run(target, "var", "GIT_COMMITTER_IDENT")
    except GitError:
        return ["-c", "user.name=sglang-guards", "-c", "user.email=sglang-guards@localhost"]
    return []

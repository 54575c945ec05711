"""A series on an installed package: applied and undone in place, whatever moment a run is killed at.

Beside the package's files lies a folder with the originals, the patched files, and a record. No file of the package is
touched before the record is on the disk, and the record is the last thing that a run changes:

    no record     the package is as it was; a folder without one is left over and is cleared
    «applying»    each file is the original or the patched one: `apply` goes on, `apply --reverse` goes back
    «applied»     all files are patched
    «undoing»     each file is the original or the patched one: `apply --reverse` goes on, `apply` patches again
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tools.patchseries import durable, gitobjects
from tools.patchseries.apply import Refused, package_of, place, present, rehearse
from tools.patchseries.manifest import PACKAGE, Series

BACKUP = ".sglang-guards-patches"


@dataclass
class Record:
    """What is being done to the package, or was done. `files`: blob before (None: no such file) and after."""

    series: str
    step: str
    files: dict[str, tuple[str | None, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Done:
    series: str
    backup: Path
    #: The run before was killed, and this one went on where it stopped.
    resumed: bool


def apply(target: Path, named: str | None, choose: Callable[[], Series]) -> Done:
    """Patch the package and keep the originals beside it. `named` is the series that the user asked for."""
    backup = package_of(target) / BACKUP
    with durable.locked(package_of(target)):
        record = read(backup)
        if record is None:
            durable.remove_folder(backup)
            record = _prepare(choose(), target, backup)
            resumed = False
        else:
            if record.step == "applied":
                raise Refused(f"{record.series} is applied already; undo it first: apply --reverse {target}")
            if named not in (None, record.series):
                raise Refused(f"a run with {record.series} was interrupted", left(target, record, backup))
            resumed = True
            if record.step != "applying":
                record.step = "applying"
                _write(backup, record)
        _forward(target, backup, record)
        return Done(record.series, backup, resumed)


def reverse(target: Path) -> str:
    """Put the originals back; says what was undone."""
    backup = package_of(target) / BACKUP
    with durable.locked(package_of(target)):
        record = read(backup)
        if record is None:
            if not backup.is_dir():
                raise Refused(f"no series was applied to {target} by this tool")
            durable.remove_folder(backup)
            return "what an interrupted run left is removed"
        _back(target, backup, record)
        return f"{record.series} undone"


def read(backup: Path) -> Record | None:
    path = backup / "state.json"
    if not path.is_file():
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        files = {name: (before, after) for name, (before, after) in data["files"].items()}
        # A record without a step is of an earlier version of this tool, which wrote it before it began.
        return Record(data["series"], data.get("step", "applying"), files)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Refused(
            f"{path} is damaged",
            f"the files of the package that were changed have their originals in {backup / 'original'}",
        ) from None


def _write(backup: Path, record: Record) -> None:
    text = json.dumps({"series": record.series, "step": record.step, "files": record.files}, indent=1)
    durable.write(backup / "state.json", text.encode() + b"\n")


def _prepare(series: Series, target: Path, backup: Path) -> Record:
    """Rehearse the series, keep both sides of every file, and write the record last."""
    before = {n: c for n, c in present(series, target).items() if n.startswith(PACKAGE)}
    after = rehearse(series, before, tests=False)
    changed = {name: content for name, content in after.items() if before.get(name) != content}
    record = Record(series.name, "applying")
    try:
        for name, content in changed.items():
            old = before.get(name)
            if old is not None:
                durable.write(backup / "original" / name, old)
            durable.write(backup / "patched" / name, content)
            record.files[name] = (None if old is None else gitobjects.blob(old), gitobjects.blob(content))
        _write(backup, record)
    except OSError as error:
        durable.remove_folder(backup)
        raise Refused(f"could not write: {error}") from None
    return record


def _forward(target: Path, backup: Path, record: Record) -> None:
    kept = _contents(target, backup, record, "patched")
    try:
        for name, (_, after) in record.files.items():
            if _found(target, name) != after:
                _put(target, name, kept[name])
        record.step = "applied"
        _write(backup, record)
    except OSError as error:
        try:
            _back(target, backup, record)
        except (OSError, Refused):
            raise Refused(f"could not write: {error}", left(target, record, backup)) from None
        raise Refused(f"could not write: {error}") from None


def _back(target: Path, backup: Path, record: Record) -> None:
    kept = _contents(target, backup, record, "original")
    try:
        if record.step == "applied":
            record.step = "undoing"
            _write(backup, record)
        for name, (before, _) in record.files.items():
            if before is None:
                durable.remove(_path(target, name))
            elif _found(target, name) != before:
                _put(target, name, kept[name])
        durable.remove(backup / "state.json")
        durable.remove_folder(backup)
    except OSError as error:
        raise Refused(f"could not write: {error}", left(target, record, backup)) from None


def _contents(target: Path, backup: Path, record: Record, side: str) -> dict[str, bytes]:
    """The kept files of one side, once every file is known to be one of the two that the record names.

    Clears what a killed run left beside them.
    """
    kept = {}
    for name, (before, after) in record.files.items():
        path = _path(target, name)
        if path.with_name(path.name + durable.BESIDE).exists():
            durable.remove(path.with_name(path.name + durable.BESIDE))
        if _found(target, name) not in (before, after):
            raise Refused(
                f"  {name}: the file was changed after the series was applied\n"
                f"to keep the files as they are and forget the series, delete {backup}",
                left(target, record, backup),
            )
        wanted = before if side == "original" else after
        if wanted is None or wanted == _found(target, name):
            continue
        copy = backup / side / name
        kept[name] = copy.read_bytes() if copy.is_file() else b""
        if gitobjects.blob(kept[name]) != wanted:
            raise Refused(f"  {copy}: missing or damaged", left(target, record, backup))
    return kept


def left(target: Path, record: Record, backup: Path) -> str:
    """How the package stands, in words, for a run that stops here."""
    patched = sum(_found(target, name) == after for name, (_, after) in record.files.items())
    if record.step == "applied":
        return "nothing was changed"
    return (
        f"{patched} of {len(record.files)} files of the package are patched with {record.series}: "
        f"go on with apply {target}, or go back with apply --reverse {target}; the originals are in {backup}"
    )


def _path(target: Path, name: str) -> Path:
    path = place(target, name)
    assert path is not None
    return path


def _found(target: Path, name: str) -> str | None:
    path = _path(target, name)
    return gitobjects.blob(path.read_bytes()) if path.is_file() else None


def _put(target: Path, name: str, content: bytes) -> None:
    path = _path(target, name)
    durable.write(path, content, path.stat().st_mode & 0o777 if path.exists() else 0o644)

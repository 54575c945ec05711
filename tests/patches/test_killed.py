"""tools/patches.py killed at every operation that changes something: what the next run finds, it finishes or undoes.

Prints «package, apply: N points, …», which tools/evidence.py keeps.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patches import killing, made
from tests.patches.made import gitobjects, snapshot
from tools import patches
from tools.patchseries import durable, manifest, package

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs fork and /proc")


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", killing.REAL["fsync"])


FILES = {
    "python/sglang/srt/one.py": b"one\n",
    "python/sglang/srt/two/deep.py": b"two\n",
    "python/sglang/version.py": b'__version__ = "1.2.3"\n',
}
MODE = 0o751


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> manifest.Series:
    """A series of two patches that change two files, make one, and test it."""
    repository = tmp_path / "made"
    gitobjects.new_repository(repository, FILES, "SGLang 1.2.3")
    gitobjects.write(repository, {"python/sglang/srt/one.py": b"one\nmore\n"})
    gitobjects.plain(repository, "commit", "-qam", "First")
    gitobjects.write(
        repository,
        {
            "python/sglang/srt/two/deep.py": b"two\nmore\n",
            "python/sglang/srt/new.py": b"new\n",
            "test/test_one.py": b"pass\n",
        },
    )
    gitobjects.plain(repository, "add", "-A")
    gitobjects.plain(repository, "commit", "-qm", "Second")
    from tools.patchseries.refresh import refresh

    series = refresh(repository, "v1.2.3", ("1.2.3",), tmp_path / "series")
    monkeypatch.setattr(patches, "load", lambda: [series])
    return series


def site(folder: Path) -> Path:
    files = {name.removeprefix("python/"): content for name, content in FILES.items()}
    gitobjects.write(folder, files)
    (folder / "sglang/srt/one.py").chmod(MODE)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    """The package without what the tool keeps beside it."""
    return {name: text for name, text in snapshot(folder).items() if package.BACKUP not in name}


def patched(before: dict[str, bytes]) -> dict[str, bytes]:
    return {
        **before,
        "sglang/srt/one.py": b"one\nmore\n",
        "sglang/srt/two/deep.py": b"two\nmore\n",
        "sglang/srt/new.py": b"new\n",
    }


def trees_killed(tmp_path: Path, start: Path, *args: str, every: int = 1) -> Iterator[tuple[int, Path]]:
    """The tree as each kill leaves it, from the first operation to the last."""
    for at in range(1, 10_000, every):
        tree = tmp_path / "killed"
        shutil.rmtree(tree, ignore_errors=True)
        shutil.copytree(start, tree, symlinks=True)
        how, code = killing.run(*args, str(tree), at=at)
        if how == "ended":
            assert code == 0
            return
        yield at, tree


def again(tree: Path, *args: str) -> int:
    return patches.main(["apply", *args, str(tree)])


def copy(tree: Path) -> Path:
    other = tree.with_name("copy")
    shutil.rmtree(other, ignore_errors=True)
    shutil.copytree(tree, other, symlinks=True)
    return other


def test_every_change_to_a_package_is_an_operation_that_is_counted(
    small: manifest.Series, tmp_path: Path
) -> None:
    tree = site(tmp_path / "site")
    assert killing.unseen(tree, str(tree)) == []
    assert content(tree) == patched(content(site(tmp_path / "other")))
    assert killing.unseen(tree, "--reverse", str(tree)) == []


def test_apply_to_a_package_killed_anywhere(
    small: manifest.Series, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = site(tmp_path / "start")
    clean, whole = content(start), patched(content(start))
    points, untouched, partly = 0, 0, 0
    for at, tree in trees_killed(tmp_path, start):
        points += 1
        now = content(tree)
        leftovers = {name for name in now if name.endswith(durable.BESIDE)}
        # nobody ever reads half a file: each is the old one or the new one
        assert all(now[n] in (clean.get(n), whole.get(n)) for n in now if n not in leftovers), at
        changed = {n: t for n, t in now.items() if n not in leftovers} != clean
        untouched += not changed
        partly += changed
        if changed:
            assert package.read(tree / "sglang" / package.BACKUP) is not None, at
        back = copy(tree)
        code = again(back, "--reverse")
        said = capsys.readouterr()
        assert content(back) == clean, at
        assert (back / "sglang/srt/one.py").stat().st_mode & 0o777 == MODE, at
        assert not (back / "sglang" / package.BACKUP).exists(), at
        assert code == 0 or (not changed and "no series was applied" in said.err), (at, said)
        assert int(package_is_done(tree)) == again(tree), at
        said = capsys.readouterr()
        assert content(tree) == whole, at
        assert "nothing was changed" not in said.err or "applied already" in said.err, at
        assert again(tree, "--reverse") == 0
        assert content(tree) == clean, at
    assert untouched > 5
    assert partly > 5
    with capsys.disabled():
        print(f"\npackage, apply: {points} points, {untouched} before anything was changed, {partly} after")


def package_is_done(tree: Path) -> bool:
    record = package.read(tree / "sglang" / package.BACKUP)
    return record is not None and record.step == "applied"


def test_reverse_of_a_package_killed_anywhere(
    small: manifest.Series, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = site(tmp_path / "start")
    clean, whole = content(start), patched(content(start))
    assert again(start) == 0
    points, untouched = 0, 0
    for at, tree in trees_killed(tmp_path, start, "--reverse"):
        points += 1
        untouched += content(tree) == whole
        forward = copy(tree)
        if not package_is_done(forward):
            assert again(forward) == 0, at
        assert content(forward) == whole, at
        code = again(tree, "--reverse")
        said = capsys.readouterr()
        assert content(tree) == clean, at
        assert not (tree / "sglang" / package.BACKUP).exists(), at
        assert code == 0 or "no series was applied" in said.err, (at, said)
    with capsys.disabled():
        print(
            f"\npackage, reverse: {points} points, {untouched} before anything was changed, {points - untouched} after"
        )


def test_a_run_that_goes_on_or_back_may_be_killed_too(small: manifest.Series, tmp_path: Path) -> None:
    start = site(tmp_path / "start")
    clean, whole = content(start), patched(content(start))
    half = next(
        tree for _, tree in trees_killed(tmp_path, start, every=5) if content(tree) not in (clean, whole)
    )
    half = half.rename(tmp_path / "half")
    for args, end in (((), whole), (("--reverse",), clean)):
        for at, tree in trees_killed(tmp_path, half, *args):
            assert again(tree, "--reverse") in (0, 1), at
            assert content(tree) == clean, at
        assert content(tmp_path / "killed") == end


def test_a_half_patched_package_is_never_called_unchanged(
    small: manifest.Series, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = site(tmp_path / "start")
    clean, whole = content(start), patched(content(start))
    tree = next(
        tree for _, tree in trees_killed(tmp_path, start, every=5) if content(tree) not in (clean, whole)
    )
    (tree / "sglang/srt/two/deep.py").write_bytes(b"another hand\n")
    capsys.readouterr()
    for args in ((), ("--reverse",)):
        assert again(tree, *args) == 1
        said = capsys.readouterr().err
        assert "srt/two/deep.py: the file was changed" in said
        assert "of 3 files of the package are patched with v1.2.3" in said
        assert "nothing was changed" not in said
    assert (tree / "sglang/srt/two/deep.py").read_bytes() == b"another hand\n"


def test_a_full_disk_is_told_as_it_is(
    small: manifest.Series,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tree = site(tmp_path / "site")
    clean, real, left = content(tree), durable.write, [0]

    def full(path: Path, text: bytes, mode: int = 0o644) -> None:
        left[0] -= path.name != "state.json" and package.BACKUP not in str(path)
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        real(path, text, mode)

    monkeypatch.setattr(durable, "write", full)
    for files, said in ((0, "nothing was changed"), (2, "1 of 3 files of the package are patched")):
        left[0] = files
        assert again(tree) == 1
        assert said in capsys.readouterr().err
    left[0] = 100
    assert again(tree, "--reverse") == 0
    assert content(tree) == clean


def as_earlier_versions_left_it(tree: Path) -> None:
    """Their record had no step, and they kept the originals alone."""
    backup = tree / "sglang" / package.BACKUP
    shutil.rmtree(backup / "patched")
    state = json.loads((backup / "state.json").read_text())
    del state["step"]
    (backup / "state.json").write_text(json.dumps(state))


def test_what_an_earlier_version_applied_can_be_undone(small: manifest.Series, tmp_path: Path) -> None:
    tree = site(tmp_path / "site")
    clean = content(tree)
    assert again(tree) == 0
    as_earlier_versions_left_it(tree)
    assert again(tree, "--reverse") == 0
    assert content(tree) == clean


def test_what_an_earlier_version_left_half_done_can_be_undone(
    small: manifest.Series, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = site(tmp_path / "site")
    clean = content(tree)
    assert again(tree) == 0
    as_earlier_versions_left_it(tree)
    (tree / "sglang/srt/one.py").write_bytes(clean["sglang/srt/one.py"])
    assert again(tree) == 1
    said = capsys.readouterr().err
    assert "patched/python/sglang/srt/one.py: missing or damaged" in said
    assert "2 of 3 files of the package are patched with v1.2.3" in said
    assert again(tree, "--reverse") == 0
    assert content(tree) == clean


@pytest.mark.parametrize("text", ["", "[]", '{"series": "v1"}', '{"series": "v1", "files": {"a": 1}}'])
def test_a_damaged_record_is_said_with_the_place_of_the_originals(
    small: manifest.Series, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    tree = site(tmp_path / "site")
    assert again(tree) == 0
    (tree / "sglang" / package.BACKUP / "state.json").write_text(text)
    for args in ((), ("--reverse",)):
        assert again(tree, *args) == 1
        said = capsys.readouterr().err
        assert "state.json is damaged" in said
        assert f"{package.BACKUP}/original" in said
        assert "nothing was changed" not in said


def test_two_runs_at_once(small: manifest.Series, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = site(tmp_path / "site")
    with durable.locked(tree / "sglang"):
        assert again(tree) == 1
    assert "another run is at work" in capsys.readouterr().err
    assert again(tree) == 0


def head(tree: Path) -> str:
    return gitobjects.plain(tree, "rev-parse", "HEAD").strip()


def names(tree: Path) -> list[str]:
    return gitobjects.plain(tree, "log", "--reverse", "--format=%s", "base..HEAD").split()


def files_of(tree: Path) -> dict[str, bytes]:
    assert gitobjects.plain(tree, "status", "--porcelain") == ""
    return snapshot(tree)


def finish(tree: Path, *args: str) -> int:
    """A git that the killed run had started may still be at work for a moment."""
    for _ in range(200):
        try:
            with durable.locked(tree / ".git"):
                break
        except durable.Busy:
            time.sleep(0.05)
    return again(tree, *args)


def test_apply_to_a_checkout_killed_anywhere(
    small: manifest.Series, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = tmp_path / "start"
    gitobjects.new_repository(start, FILES, "SGLang 1.2.3")
    clean, at_first = files_of(start), head(start)
    points, early = 0, 0
    for at, tree in trees_killed(tmp_path, start):
        points += 1
        early += not (tree / ".git/sglang-guards-patches.json").exists() and head(tree) == at_first
        back = copy(tree)
        finish(back, "--reverse")
        if not (tree / ".git/sglang-guards-patches.json").exists() and head(tree) != at_first:
            assert names(tree) == ["First", "Second"], at  # the run was done but for its last word
            continue
        assert (head(back), files_of(back)) == (at_first, clean), at
        assert finish(tree) == 0, (at, capsys.readouterr())
        assert names(tree) == ["First", "Second"], at
        assert not (tree / ".git/sglang-guards-patches.json").exists(), at
        assert not (tree / ".git/rebase-apply").exists(), at
    with capsys.disabled():
        print(
            f"\ncheckout, apply: {points} points, {early} before anything was changed, {points - early} after"
        )


KILLERS: dict[str, str] = {
    "git": "kill -9 $PPID",
    "git and the tool": "kill -9 $(ps -o ppid= -p $PPID) $PPID",
}


@pytest.mark.parametrize("who", KILLERS)
@pytest.mark.parametrize("hook", ["applypatch-msg", "pre-applypatch", "post-applypatch"])
@pytest.mark.parametrize("number", [1, 2])
def test_git_am_killed_in_the_middle(
    small: manifest.Series,
    tmp_path: Path,
    hook: str,
    number: int,
    who: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tree = tmp_path / "tree"
    gitobjects.new_repository(tree, FILES, "SGLang 1.2.3")
    clean, at_first = files_of(tree), head(tree)
    script = tree / ".git/hooks" / hook
    script.parent.mkdir(exist_ok=True)
    counter = tmp_path / "counter"
    script.write_text(
        f"#!/bin/sh\nn=$(($(cat {counter} 2>/dev/null || echo 0) + 1)); echo $n > {counter}\n"
        f"[ $n -eq {number} ] && {KILLERS[who]}\nexit 0\n"
    )
    script.chmod(0o755)
    how, code = killing.run(str(tree), at=100_000)
    assert (how, code) == (("ended", 1) if who == "git" else ("killed", 0))
    if who == "git":
        assert (head(tree), files_of(tree)) == (at_first, clean)
    other = copy(tree)
    assert finish(other, "--reverse") == (0 if who != "git" else 1)
    assert (head(other), files_of(other)) == (at_first, clean)
    assert finish(tree) == 0, capsys.readouterr()
    assert names(tree) == ["First", "Second"]
    assert not (tree / ".git/rebase-apply").exists()


def test_somebody_elses_git_am_is_left_alone(
    small: manifest.Series, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = tmp_path / "tree"
    gitobjects.new_repository(tree, FILES, "SGLang 1.2.3")
    note = f'{{"series": "v1.2.3", "before": "{head(tree)}", "subjects": ["First", "Second"]}}'
    (tree / ".git/sglang-guards-patches.json").write_text(note)
    (tree / ".git/rebase-apply").mkdir()
    (tree / ".git/rebase-apply/last").write_text("7\n")
    assert again(tree) == 1
    assert "not this tool's" in capsys.readouterr().err
    assert (tree / ".git/rebase-apply/last").exists()


@pytest.mark.slow
def test_a_whole_series_killed_anywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = made.package(tmp_path / "start", "0.5.15")
    clean, points = content(start), 0
    for at, tree in trees_killed(tmp_path, start):
        points += 1
        other = copy(tree)
        again(other, "--reverse")
        assert content(other) == clean, at
        assert int(package_is_done(tree)) == again(tree), at
        assert again(tree, "--reverse") == 0
        assert content(tree) == clean, at
    with capsys.disabled():
        print(f"\npackage, the whole series for 0.5.15: {points} points")

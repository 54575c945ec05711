"""apply on a checkout and on a package: it fits exactly, or it is refused with file and hunk and nothing changes."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.patches import made
from tests.patches.made import base_files, checkout, package, series, snapshot
from tools import patches

RELEASE = "0.5.15"
Maker = Callable[..., Path]


@pytest.fixture(params=[checkout, package], ids=["checkout", "package"])
def maker(request: pytest.FixtureRequest) -> Maker:
    made: Maker = request.param
    return made


def head(folder: Path) -> str:
    return made.gitobjects.plain(folder, "rev-parse", "HEAD") if (folder / ".git").exists() else ""


def refused(folder: Path, capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """The refusal of apply, after proving that the tree is as it was."""
    before, at = snapshot(folder), head(folder)
    assert patches.main(["apply", str(folder), *args]) == 1
    assert snapshot(folder) == before
    assert head(folder) == at
    said = capsys.readouterr().err
    assert said.startswith("refused: ")
    assert "nothing was changed" in said
    return said


def file(release: str, short: str) -> bytes:
    return next(content for name, content in base_files(release).items() if name.endswith(f"/{short}.py"))


def test_every_file_of_a_checkout_is_as_in_the_manifest(tmp_path: Path) -> None:
    folder = checkout(tmp_path / "sglang", RELEASE)
    assert patches.main(["apply", str(folder)]) == 0
    files = {name: (folder / name).read_bytes() for name in series(RELEASE).files}
    assert made.gitobjects.tree(files) == series(RELEASE).tree
    subjects = made.gitobjects.plain(folder, "log", "--format=%s", "base..HEAD").splitlines()
    assert subjects == [patch.subject for patch in reversed(series(RELEASE).patches)]


def test_the_printed_undo_brings_a_checkout_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = checkout(tmp_path / "sglang", RELEASE)
    before = snapshot(folder)
    patches.main(["apply", str(folder)])
    undo = capsys.readouterr().out.splitlines()[-1].removeprefix("undo: ")
    subprocess.run(undo.split(), check=True, capture_output=True)
    assert snapshot(folder) == before


def test_a_package_gets_the_same_files_without_tests_and_comes_back(tmp_path: Path) -> None:
    folder = package(tmp_path / "site-packages", RELEASE)
    before = snapshot(folder)
    assert patches.main(["apply", str(folder)]) == 0
    with_git = checkout(tmp_path / "sglang", RELEASE)
    patches.main(["apply", str(with_git)])
    for name in series(RELEASE).package_files:
        assert (folder / name.removeprefix("python/")).read_bytes() == (with_git / name).read_bytes()
    assert not (folder / "test").exists()
    assert patches.main(["apply", "--reverse", str(folder)]) == 0
    assert snapshot(folder) == before


def test_a_package_folder_itself_will_do(tmp_path: Path) -> None:
    folder = package(tmp_path / "site-packages", RELEASE) / "sglang"
    assert patches.main(["apply", str(folder)]) == 0
    assert patches.main(["apply", "--reverse", str(folder)]) == 0


def test_links_of_a_package_are_replaced_and_their_targets_left_alone(tmp_path: Path) -> None:
    folder = package(tmp_path / "site-packages", RELEASE)
    name = next(n for n in series(RELEASE).package_files if n.endswith("/fused_moe.py"))
    path = folder / name.removeprefix("python/")
    shared = tmp_path / "shared.py"
    path.rename(shared)
    path.symlink_to(shared)
    original = shared.read_bytes()
    assert patches.main(["apply", str(folder)]) == 0
    assert shared.read_bytes() == original
    assert path.read_bytes() != original


def test_a_fork_with_changes_elsewhere_in_the_file_fits(tmp_path: Path, maker: Maker) -> None:
    forked = b"# our fork\n# has two more lines\n" + file(RELEASE, "server_args")
    folder = maker(tmp_path / "fork", RELEASE, server_args=forked)
    assert patches.main(["apply", str(folder), "--series", RELEASE]) == 0
    text = next(
        c for n, c in snapshot(folder).items() if n.endswith("/srt/server_args.py") and "original" not in n
    )
    assert text.startswith(b"# our fork")
    assert b"def _handle_fused_moe_sum_all_reduce(self)" in text


def test_a_missing_file_is_named(tmp_path: Path, maker: Maker, capsys: pytest.CaptureFixture[str]) -> None:
    folder = maker(tmp_path / "tree", RELEASE, fused_moe_triton_kernels=None)
    said = refused(folder, capsys, "--series", RELEASE)
    assert "fused_moe_triton_kernels.py: the file is missing" in said
    assert "v0.5.15/0004-" in said


def test_a_hunk_that_is_there_already_is_named(
    tmp_path: Path, maker: Maker, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel = file(RELEASE, "fused_moe_triton_kernels")
    whole = checkout(tmp_path / "whole", RELEASE)
    patches.main(["apply", str(whole)])
    name = next(n for n in series(RELEASE).package_files if n.endswith("_triton_kernels.py"))
    patched = (whole / name).read_bytes()
    assert kernel != patched
    folder = maker(tmp_path / "tree", RELEASE, fused_moe_triton_kernels=patched)
    capsys.readouterr()
    said = refused(folder, capsys, "--series", RELEASE)
    assert "fused_moe_triton_kernels.py, hunk 1 of 1 (@@ -634,7 +634,8 @@" in said
    assert "the hunk is applied already" in said


def test_a_changed_line_is_named(tmp_path: Path, maker: Maker, capsys: pytest.CaptureFixture[str]) -> None:
    other = file(RELEASE, "fused_moe").replace(b"and (not use_int4_w4a16)", b"and not use_int4_w4a16")
    folder = maker(tmp_path / "tree", RELEASE, fused_moe=other)
    said = refused(folder, capsys, "--series", RELEASE)
    assert "fused_moe.py, hunk 1 of 1 (@@ -493,6" in said
    assert "the lines around it differ" in said


def test_crlf_line_ends_are_named(tmp_path: Path, maker: Maker, capsys: pytest.CaptureFixture[str]) -> None:
    dos = file(RELEASE, "server_args").replace(b"\n", b"\r\n")
    folder = maker(tmp_path / "tree", RELEASE, server_args=dos)
    assert "the file has CRLF line ends" in refused(folder, capsys, "--series", RELEASE)


def test_a_second_time_is_refused(tmp_path: Path, maker: Maker, capsys: pytest.CaptureFixture[str]) -> None:
    folder = maker(tmp_path / "tree", RELEASE)
    assert patches.main(["apply", str(folder)]) == 0
    capsys.readouterr()
    assert "applied already" in refused(folder, capsys, "--series", RELEASE)


def test_a_dirty_checkout_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = checkout(tmp_path / "sglang", RELEASE)
    (folder / "README.md").write_text("mine\n")
    assert "uncommitted changes:\n   M README.md" in refused(folder, capsys)


def test_an_untracked_file_in_the_way_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = checkout(tmp_path / "sglang", RELEASE)
    name = next(name for name in series(RELEASE).files if name.startswith("test/"))
    made.gitobjects.write(folder, {name: b"mine\n"})
    assert name in refused(folder, capsys)


def test_an_unfinished_git_am_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = checkout(tmp_path / "sglang", RELEASE)
    (folder / ".git/rebase-apply").mkdir()
    assert "in the middle of a git am" in refused(folder, capsys)


def test_a_file_changed_after_apply_stops_the_reverse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = package(tmp_path / "site-packages", RELEASE)
    patches.main(["apply", str(folder)])
    path = next(folder.rglob("fused_moe.py"))
    path.write_bytes(path.read_bytes() + b"# mine\n")
    capsys.readouterr()
    assert "fused_moe.py: the file was changed" in refused(folder, capsys, "--reverse")


def test_reverse_without_apply_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = package(tmp_path / "site-packages", RELEASE)
    assert "no series was applied" in refused(folder, capsys, "--reverse")


def test_another_release_is_refused_before_anything_is_written(
    tmp_path: Path, maker: Maker, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = maker(tmp_path / "tree", "0.5.23")
    assert "does not fit" in refused(folder, capsys, "--series", RELEASE)


def test_a_tree_without_version_asks_for_the_series(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = checkout(tmp_path / "sglang", RELEASE, server_args=b"import os\n")
    assert "name a series with --series" in refused(folder, capsys)


def test_no_sglang_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "neither a checkout of SGLang" in refused(tmp_path, capsys)

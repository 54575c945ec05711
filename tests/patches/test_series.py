"""Every series: headers, clean application, tree id; for the oldest, 0.5.15 and the newest also tests and faults."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path

import pytest

from tests.patches import made
from tests.patches.made import EVERY, series
from tests.trees import FLAG_RELEASES, tree
from tools.patchseries import apply, check, gitobjects, manifest, pull_requests, refresh, trees

WITH_TESTS = ("0.5.10.post1", "0.5.15", "0.5.23")


def options(*, tests: bool) -> check.Options:
    return check.Options(trees=made.trees_root(), tests=tests)


@pytest.mark.parametrize("one", EVERY, ids=lambda one: one.name)
def test_headers_and_names(one: manifest.Series) -> None:
    assert list(check.lint(one)) == []


@pytest.mark.parametrize("one", EVERY, ids=lambda one: one.name)
def test_applies_to_its_release_and_satisfies_the_probes(one: manifest.Series) -> None:
    for release in one.releases:
        tree(release)
    assert check.check(one, options(tests=False)).failures == []


@pytest.mark.slow
@pytest.mark.live
@pytest.mark.parametrize("release", WITH_TESTS)
def test_own_tests_pass_and_the_untouched_release_shows_the_faults(release: str) -> None:
    tree(release)
    outcome = check.check(series(release), options(tests=True))
    assert outcome.failures == []
    assert any("faults shown" in note for note in outcome.notes)


@pytest.mark.parametrize("one", pull_requests.all_of_them(), ids=lambda one: one.name.split("/")[1])
def test_pull_requests_apply(one: manifest.Series) -> None:
    tree(pull_requests.RELEASE)
    assert pull_requests.check(one, options(tests=False)).failures == []


def test_every_release_with_the_flag_has_a_series() -> None:
    covered = {release for one in EVERY for release in one.releases}
    assert covered == set(FLAG_RELEASES)


def test_one_concern_per_patch_in_the_same_order() -> None:
    """Subjects of every series, without what a release does not need, are those of the longest."""
    subjects = [[patch.subject for patch in one.patches] for one in EVERY]
    longest = max(subjects, key=len)
    for mine in subjects:
        assert mine == [subject for subject in longest if subject in mine]


def test_the_ci_takes_the_oldest_one_per_shape_and_the_newest() -> None:
    chosen = manifest.for_ci(EVERY)
    assert chosen[0] == EVERY[0]
    assert chosen[-1] == EVERY[-1]
    assert {one.shape for one in chosen} == {one.shape for one in EVERY}
    assert len(chosen) < len(EVERY)


def test_a_manifest_reads_back_as_it_was_written(tmp_path: Path) -> None:
    for one in EVERY:
        shutil.copytree(manifest.PATCHES / one.name, tmp_path / one.name)
    manifest.dump(EVERY, tmp_path)
    assert (tmp_path / "manifest.toml").read_bytes() == (manifest.PATCHES / "manifest.toml").read_bytes()
    assert [one.tree for one in manifest.load(tmp_path)] == [one.tree for one in EVERY]


def test_tree_ids_are_those_of_git(tmp_path: Path) -> None:
    files = {"a.py": b"1\n", "a/b.py": b"2\n", "a-b/c/d.py": b"", "a.b/x": b"3"}
    del files["a.py"]
    gitobjects.new_repository(tmp_path / "r", files, "files")
    assert gitobjects.plain(tmp_path / "r", "rev-parse", "HEAD^{tree}").strip() == gitobjects.tree(files)


# -- the check itself can fail -------------------------------------------------------------------------------------


def failures(one: manifest.Series) -> str:
    return "\n".join(check.check(one, options(tests=False)).failures)


def test_a_wrong_tree_id_is_found() -> None:
    tree("0.5.15")
    assert "the manifest says 0000" in failures(dataclasses.replace(series("0.5.15"), tree="0" * 40))


def test_a_wrong_base_is_found() -> None:
    tree("0.5.16")
    moved = dataclasses.replace(series("0.5.15"), releases=("0.5.16",))
    assert "SGLang 0.5.16 differs from the series' base" in failures(moved)


def test_an_edited_patch_is_found(tmp_path: Path) -> None:
    tree("0.5.15")
    one = series("0.5.15")
    first = one.patches[0]
    copy = tmp_path / first.path.name
    copy.write_text(first.text.replace("+        reason = None\n", "+        reason = ''\n"))
    edited = dataclasses.replace(one, patches=(dataclasses.replace(first, path=copy), *one.patches[1:]))
    assert "patched tree is" in failures(edited)


def test_a_series_without_the_kernel_fix_fails_its_probe(tmp_path: Path) -> None:
    """The probes are what says that the guard falls silent: leave one fix out and they say no."""
    tree("0.5.15")
    files = made.base_files("0.5.15")
    out = trees.overlay(tree("0.5.15"), files, tmp_path / "tree")
    outcome = check.Outcome(series("0.5.15"))
    check._guard_is_satisfied(series("0.5.15"), out, outcome)
    assert any(failure.startswith("probe zero_store_guarded: False") for failure in outcome.failures)
    assert any(failure.startswith("probe validator_present: False") for failure in outcome.failures)
    unwritten = "probe fp8_scale_reads_unwritten_rows: True"
    assert any(failure.startswith(unwritten) for failure in outcome.failures)


# -- the next release ----------------------------------------------------------------------------------------------


def test_a_series_is_drafted_for_another_release_and_written(tmp_path: Path) -> None:
    """0.5.15 → 0.5.15.post1: everything fits, and the written series is the one that is here."""
    tree("0.5.15"), tree("0.5.15.post1")
    repository = tmp_path / "next"
    said = refresh.scratch(series("0.5.15"), "0.5.15.post1", repository, made.trees_root())
    assert said.startswith(f"all {len(series('0.5.15').patches)} patches fit")
    drafted = refresh.refresh(repository, "v0.5.15.post1", ("0.5.15.post1",), tmp_path / "patches")
    assert drafted.tree == series("0.5.15.post1").tree


def test_a_draft_that_does_not_fit_says_what_is_left(tmp_path: Path) -> None:
    tree("0.5.15"), tree("0.5.23")
    said = refresh.scratch(series("0.5.15"), "0.5.23", tmp_path / "next", made.trees_root())
    assert said.startswith(f"patch 1 of {len(series('0.5.15').patches)} needs a hand")
    assert "git cherry-pick --continue" in said


def test_an_overlay_leaves_the_release_alone(tmp_path: Path) -> None:
    root = tree("0.5.15")
    name = "python/sglang/srt/server_args.py"
    before = (root / "sglang/srt/server_args.py").read_bytes()
    out = trees.overlay(root, {name: b"# other\n"}, tmp_path / "tree")
    assert (out / "sglang/srt/server_args.py").read_bytes() == b"# other\n"
    assert (root / "sglang/srt/server_args.py").read_bytes() == before
    assert os.path.samefile(out / "sglang/srt/utils", root / "sglang/srt/utils")
    assert apply.kind_of(out) == "package"

"""The guard says which patches a tree carries: all of a series on a patched tree, none on a published release."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from sglang_guards import source
from sglang_guards.judge import judge
from sglang_guards.launch.facts import Launch
from sglang_guards.report import text
from sglang_guards.settings import Settings
from sglang_guards.source.applied_patches import PATCHES, applied_patches
from tests.patches.made import EVERY, base_files, series
from tests.trees import FLAG_RELEASES, tree
from tools.patchseries import gitobjects, manifest, trees


def found(root: Path) -> tuple[str, ...]:
    tree_source = source.find(root)
    assert tree_source is not None
    return applied_patches(tree_source)


def with_patches(release: str, numbers: range, out: Path) -> Path:
    """The release with some of its patches; those before must be in for git to find their place."""
    files = base_files(release)
    gitobjects.new_repository(out / "repository", files, release)
    paths = [str(patch.path) for patch in series(release).patches if int(patch.path.name[:4]) in numbers]
    gitobjects.plain(out / "repository", "am", "--no-3way", *paths)
    now = {name: (out / "repository" / name).read_bytes() for name in files}
    return trees.overlay(tree(release), now, out / "tree")


@pytest.mark.parametrize("release", FLAG_RELEASES)
def test_a_published_release_carries_none(release: str) -> None:
    assert found(tree(release)) == ()


@pytest.mark.parametrize("one", EVERY, ids=lambda one: one.name)
def test_a_whole_series_is_recognised(one: manifest.Series, tmp_path: Path) -> None:
    release = one.releases[-1]
    expected = list(PATCHES.values())
    minor = int(release.split(".")[2])
    if (
        minor == 10
    ):  # its LoRA runner does not come by the gate, and its fused kernel reduces over the whole of TP
        expected.remove(PATCHES["gate_checks_lora_hooks"])
        expected.remove(PATCHES["fusion_hybrid_ep_guarded"])
    if not any("in-column-bands" in patch.path.name for patch in one.patches):
        expected.remove(PATCHES["fused_sum_in_bands"])
    assert found(with_patches(release, range(1, 99), tmp_path)) == tuple(expected)


def test_a_part_of_a_series_is_told_apart(tmp_path: Path) -> None:
    root = with_patches("0.5.15", range(1, 5), tmp_path)
    assert found(root) == (
        "validation at start-up",
        "all-reduce fusion for more entry classes",
        "no all-reduce fusion across two MoE groups",
        "relaxed atomics",
    )


def shown(root: Path, *, verbose: bool) -> str:
    report = judge(Launch({}, source=source.find(root)), Settings(), [])
    out = io.StringIO()
    text.text(report, text.console(out), verbose=verbose)
    return out.getvalue()


def test_check_v_says_what_a_patched_tree_carries(tmp_path: Path) -> None:
    root = with_patches("0.5.15", range(1, 99), tmp_path)
    said = shown(root, verbose=True)
    assert all(f"carries  patch: {patch}" in said for patch in PATCHES.values())
    assert "carries" not in shown(root, verbose=False)
    assert "carries" not in shown(tree("0.5.15"), verbose=True)

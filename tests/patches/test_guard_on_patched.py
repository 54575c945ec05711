"""The whole guard on a patched release: launches that it refuses on the untouched one pass without a finding."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.patches import made
from tests.patches.made import ROOT, base_files, series
from tests.trees import tree
from tools.patchseries import gitobjects, trees

pytestmark = [pytest.mark.live, pytest.mark.slow]

RELEASES = ("0.5.15", "0.5.23")
MODELS = ROOT / "tests/launches/models"
FLAG = "--enable-fused-moe-sum-all-reduce"
#: Name -> extra flags, GPUs, ids that the untouched release must and the patched one must not give.
LAUNCHES: dict[str, tuple[list[str], str, set[str]]] = {
    "expert-parallel": (["--ep-size", "4"], "4xH200", {"FMS101", "FMS301"}),
    "fp8-expert-parallel": (["--quantization", "fp8", "--ep-size", "4"], "4xH200", {"QNT102", "FMS101"}),
    "plain": ([], "4xH200", {"FMS301"}),
    "deterministic": (["--enable-deterministic-inference"], "4xH200", {"FMS104"}),
    "rocm": (["--moe-runner-backend", "triton"], "4xMI300X", {"FMS102"}),
}
#: 0.5.23 has no zero store to fix.
FIXED = {"0.5.23": {"FMS101"}}


def patched(release: str, out: Path) -> Path:
    files = base_files(release)
    repository = out / "repository"
    gitobjects.new_repository(repository, files, release)
    gitobjects.plain(repository, "am", "--no-3way", *(str(patch.path) for patch in series(release).patches))
    now = {name: (repository / name).read_bytes() for name in files}
    return trees.overlay(tree(release), now, out / "tree")


def answers(root: Path) -> dict[str, dict[str, Any]]:
    """Reports of LAUNCHES on the SGLang in `root`, by name."""
    model = MODELS / "qwen3-235b-a22b"
    words = [
        "python",
        "-m",
        "sglang.launch_server",
        "--model-path",
        "Qwen/Qwen3-235B-A22B",
        "--tp",
        "4",
        FLAG,
    ]
    cases = [
        {"argv": [*words, *more], "gpu": gpu, "model_config": str(model)}
        for more, gpu, _ in LAUNCHES.values()
    ]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SGLANG", "PYTHON"))}
    env |= {"PYTHONPATH": os.pathsep.join((str(ROOT), str(root))), "PYTHONWARNINGS": "ignore"}
    env["SGLANG_GUARDS_TREES"] = str(made.trees_root())
    done = subprocess.run(
        [sys.executable, "-m", "tests.live.preflight_cases"],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        env=env,
        cwd=ROOT,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(zip(LAUNCHES, json.loads(done.stdout), strict=True))


def found(report: dict[str, Any]) -> set[str]:
    assert "findings" in report, report
    return {finding["id"] for finding in report["findings"]}


@pytest.mark.parametrize("release", RELEASES)
def test_launches_that_are_refused_pass_on_the_patched_tree(release: str, tmp_path: Path) -> None:
    before, after = answers(tree(release)), answers(patched(release, tmp_path))
    for name, (_, _, ids) in LAUNCHES.items():
        expected = ids - FIXED.get(release, set())
        assert expected <= found(before[name]), name
        assert not ids & found(after[name]), name
        assert after[name]["summary"]["error"] == 0, name
        assert after[name]["notes"] == [], name

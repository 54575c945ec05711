"""A fork is judged by its own source: where it branches before SGLang's runners, nothing certain is said of them.

`lsglang` hands experts to a kernel package of its own when LK_MOE_HYBRID_ENABLED is set, and swaps the call of the
runner in every case.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tests.launches.checks import check_all
from tests.releases import FORKS
from tests.trees import tree

pytestmark = pytest.mark.live

FORK = FORKS[0]
LAYER = "sglang/srt/layers/moe/fused_moe_triton/layer.py"
START = [
    "python",
    "-m",
    "sglang.launch_server",
    "--model-path",
    "example/model",
    "--tp",
    "4",
    "--ep-size",
    "4",
]
FUSED = "--enable-fused-moe-sum-all-reduce"
HYBRID = {"LK_MOE_HYBRID_ENABLED": "1"}


@cache
def judged() -> dict[str, dict[str, Any]]:
    tree(FORK)
    launch = {"gpu": "4xH200", "model": "qwen3-30b-a3b-fp8", "build": True}
    launches = {
        "plain": {**launch, "argv": START},
        "fused": {**launch, "argv": [*START, FUSED]},
        "hybrid": {**launch, "argv": START, "env": HYBRID},
        "hybrid-fused": {**launch, "argv": [*START, FUSED], "env": HYBRID},
    }
    order = sorted(launches, key=lambda name: str(launches[name].get("env")))
    return dict(zip(order, check_all(FORK, [launches[name] for name in order]), strict=True))


def test_the_fork_branches_where_we_say() -> None:
    text = (tree(FORK) / LAYER).read_text(encoding="utf-8")
    assert "if is_lk_moe_feature_enabled():\n    import lk_moe" in text
    common = (tree(FORK) / "sglang/srt/utils/lk_moe_env.py").read_text(encoding="utf-8")
    assert 'return get_bool_env_var("LK_MOE_HYBRID_ENABLED")' in common


@pytest.mark.parametrize("name", ["plain", "fused", "hybrid", "hybrid-fused"])
def test_no_error_and_the_unknown_is_said(name: str) -> None:
    report = judged()[name]
    assert report["target"]["distribution"] == FORK.replace("==", " ")
    assert not [f for f in report["findings"] if f["severity"] != "info"], report["findings"]
    assert "the runner of the MoE layers" in " ".join(report["unknown"])
    assert ("FMS101" in {rule["id"] for rule in report["skipped"]}) is ("fused" in name)


def test_a_class_that_cannot_be_imported_here_is_not_built() -> None:
    for name in ("hybrid", "hybrid-fused"):
        build = judged()[name]["build"]
        assert build["status"] == "not built"
        assert "No module named 'lk_moe'" in build["reason"]

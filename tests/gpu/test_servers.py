"""Real engines on two GPUs or more, dummy weights: what the guards promise about launches holds for what they serve."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
ARMS = ["off", "guards", "on", "hotfix", "series", "ep-off", "ep-on", "ep-guarded", "ep-series"]


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """Every arm's row, all started at once at TP 2, or 4 where there are four GPUs."""
    import sglang
    import torch

    tree = tmp_path_factory.mktemp("series")
    _load("patched_tree").build(Path(sglang.__path__[0]).parent, tree)
    tp = 4 if torch.cuda.device_count() >= 4 else 2
    rows: dict[str, dict[str, Any]] = _load("e2e").run_together(ARMS, tp, tree)
    if folder := os.environ.get("SGLANG_GUARDS_RESULTS"):
        Path(folder, f"servers-tp{tp}.json").write_text(json.dumps(rows, indent=1))
    return rows


def _share(a: dict[str, Any], b: dict[str, Any]) -> float:
    pairs = [
        (x, y)
        for name in a["tokens"]
        for one, two in zip(a["tokens"][name], b["tokens"][name], strict=True)
        for x, y in zip(one, two, strict=True)
    ]
    return sum(x == y for x, y in pairs) / len(pairs)


@pytest.mark.tp2
class TestServers:
    def test_guards_change_no_token(self, served: dict[str, dict[str, Any]]) -> None:
        assert served["off"]["exit"] == served["guards"]["exit"] == 0
        assert served["guards"]["tokens"] == served["off"]["tokens"]

    @pytest.mark.parametrize("arm", ["on", "hotfix", "series"])
    def test_the_fused_sum_gives_the_same_text_but_for_rounding(
        self, served: dict[str, dict[str, Any]], arm: str
    ) -> None:
        assert served[arm]["exit"] == 0, served[arm].get("log_tail")
        assert _share(served[arm], served["off"]) > 0.8

    def test_expert_parallelism_as_installed_dies_at_longer_prompts(
        self, served: dict[str, dict[str, Any]]
    ) -> None:
        import sglang

        from sglang_guards.source.tree import Source

        guarded = Source(Path(sglang.__path__[0])).ask("zero_store_guarded").value
        row = served["ep-on"]
        if guarded:
            assert row["exit"] == 0
        else:
            assert row["exit"] != 0
            assert "illegal memory access" in row["died"], row["log_tail"]
            assert "4x16" in row["served"]

    def test_the_guard_refuses_it_before_anything_is_served(self, served: dict[str, dict[str, Any]]) -> None:
        row = served["ep-guarded"]
        assert row["exit"] != 0
        assert "FMS101" in row["died"], row["log_tail"]
        assert row["served"] == []
        assert row["seconds"] < served["ep-off"]["seconds"]

    def test_the_patched_tree_is_right_under_expert_parallelism(
        self, served: dict[str, dict[str, Any]]
    ) -> None:
        assert served["ep-series"]["exit"] == 0, served["ep-series"].get("log_tail")
        assert _share(served["ep-series"], served["ep-off"]) > 0.8

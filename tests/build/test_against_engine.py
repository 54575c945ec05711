"""The build on the meta device against what real engines had loaded on an H200 (benchmarks/results/*-loaded.jsonl)."""

from __future__ import annotations

import json
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.launches.checks import check_all

pytestmark = pytest.mark.live

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"


def _loaded() -> list[dict[str, Any]]:
    rows = [
        json.loads(line)
        for p in sorted(RESULTS.glob("*-loaded.jsonl"))
        for line in p.read_text().splitlines()
    ]
    return [row for row in rows if "reason" not in row]


ROWS = _loaded()


@cache
def _built(release: str) -> dict[str, dict[str, Any]]:
    models = [row["model"] for row in ROWS if row["sglang"] == release]
    launches = [
        {
            "argv": ["python", "-m", "sglang.launch_server", "--model-path", f"some/{model}",
                     "--attention-backend", "triton"],
            "gpu": "1xH200",
            "model": model,
            "build": True,
        }
        for model in models
    ]  # fmt: skip
    return dict(zip(models, check_all(release, launches), strict=True))


def test_three_models_were_loaded() -> None:
    by_release: dict[str, set[str]] = defaultdict(set)
    for row in ROWS:
        by_release[row["sglang"]].add(row["model"])
    assert max(map(len, by_release.values())) >= 3


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['sglang']}-{row['model']}")
def test_the_build_is_what_the_engine_loaded(row: dict[str, Any]) -> None:
    build = _built(row["sglang"])[row["model"]]["build"]
    assert build["status"] == "built"
    (rank,) = build["ranks"]
    assert rank["model_class"] == row["architecture"]
    built = {(layer["kind"], layer["method"], layer["runner"]): layer["count"] for layer in rank["layers"]}
    experts = [layer for layer in row["layers"] if layer["kind"] == "FusedMoE"]
    assert built == {(x["kind"], x["method"], x["runner"]): x["count"] for x in experts}
    if experts[0]["runner"] == "triton_kernel":
        # Its weights leave the module's parameters after loading, padded: the whole allocation bounds them.
        assert 0.9 < rank["weights_bytes"] / row["allocated_bytes"] <= 1
        return
    assert rank["bytes_by_kind"]["experts"] == row["moe_parameter_bytes"]
    assert rank["weights_bytes"] == row["storage_bytes"]

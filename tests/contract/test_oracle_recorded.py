"""What an H200 did in each cell of the oracle's grid is what the rules predict, without a GPU.

`benchmarks/results/*-oracle.jsonl` holds what `pytest tests/gpu/test_oracle.py` observed, on two releases.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from sglang_guards.source.tree import Source
from tests.gpu import oracle
from tests.gpu.problems import Problem
from tests.trees import tree

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"


def _recorded() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for path in sorted(RESULTS.glob("*-oracle.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            found[row["sglang"]].append(row)
    return found


RECORDED = _recorded()


@pytest.mark.parametrize("release", sorted(RECORDED))
def test_the_rules_predict_what_the_gpu_did(release: str) -> None:
    rows = RECORDED[release]
    assert len(rows) >= 288
    assert {row["observed"] for row in rows} >= {
        "no effect",
        "active and right",
        "wrong",
        "the default is wrong",
    }
    source = Source(tree(release) / "sglang")
    names = ("kind", "tokens", "top_k", "filtered", "hook", "through_core")
    wrong = {}
    for row in rows:
        said = oracle.predicted(Problem(**{name: row[name] for name in names}), row, source)
        if said != row["observed"]:
            wrong[row["cell"]] = (said, row["observed"])
    assert not wrong

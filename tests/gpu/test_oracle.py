"""Every disagreement between the rules and this GPU is a bug in a rule or a fact."""

from __future__ import annotations

import itertools
import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.gpu.problems import KINDS, Problem

pytestmark = pytest.mark.gpu


def cells() -> list[Problem]:
    """288 cells: kind × way in (direct, runner core, the same with a LoRA hook) × filter × (top-k, tokens)."""
    ways = ((False, False), (True, False), (True, True))
    return [
        Problem(kind, tokens, top_k, filtered, hook, core)
        for kind, (core, hook), filtered, (top_k, tokens) in itertools.product(
            KINDS, ways, (False, True), ((1, 40), (2, 40), (3, 40), (8, 40), (3, 5), (8, 5))
        )
    ]


def _name(p: Problem) -> str:
    way = "lora" if p.hook else "core" if p.through_core else "direct"
    return f"{p.kind}-{way}-{'filtered' if p.filtered else 'all'}-k{p.top_k}-m{p.tokens}"


def test_the_grid_is_large_enough() -> None:
    assert len(set(cells())) >= 200


@pytest.mark.parametrize("problem", cells(), ids=_name)
def test_the_rules_predict_what_happens(problem: Problem) -> None:
    from tests.gpu import oracle

    observed = oracle.observed(problem)
    if folder := os.environ.get("SGLANG_GUARDS_RESULTS"):
        row = {"cell": _name(problem), "observed": observed} | asdict(problem) | oracle.machine()
        with Path(folder, f"oracle-{os.getpid()}.jsonl").open("a", encoding="utf-8") as sink:
            sink.write(json.dumps(row) + "\n")
    assert oracle.predicted(problem) == observed

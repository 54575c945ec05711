"""The same launch on neighbouring releases: a rule may change its mind only where a fact that it reads has changed."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from typing import Any

import pytest

from tests.launches.checks import MODELS, ROOT, environment
from tests.trees import FLAG_RELEASES, running

RELEASES = running("differential", FLAG_RELEASES)
FLAG = "--enable-fused-moe-sum-all-reduce"
QWEN3 = "qwen3-30b-a3b-bf16"
LORA = ["--enable-lora", "--max-lora-rank", "8", "--lora-target-modules", "all"]
LAUNCHES: dict[str, tuple[str, str, list[str]]] = {
    "tp": ("4xH100", QWEN3, ["--tp", "4", FLAG]),
    "ep": ("4xH100", QWEN3, ["--tp", "4", "--ep-size", "4", FLAG]),
    "hybrid-ep": ("8xH100", QWEN3, ["--tp", "8", "--ep-size", "2"]),
    "lora": ("4xH100", QWEN3, ["--tp", "4", FLAG, *LORA]),
    "deterministic": ("4xH100", QWEN3, ["--tp", "4", FLAG, "--enable-deterministic-inference"]),
    "b200": ("4xB200", QWEN3, ["--tp", "4", FLAG]),
    "mixed-chunk": ("4xH100", QWEN3, ["--tp", "4", "--enable-mixed-chunk", "--speculative-algorithm", "NGRAM"]),
}  # fmt: skip


@cache
def answers(release: str) -> dict[str, dict[str, Any]]:
    asked = [
        {
            "argv": ["python", "-m", "sglang.launch_server", "--model-path", f"example/{model}", *argv],
            "gpu": gpu,
            "model_config": str(MODELS / model),
        }
        for gpu, model, argv in LAUNCHES.values()
    ]
    done = subprocess.run(
        [sys.executable, "-m", "tests.launches.answers"],
        input=json.dumps(asked),
        env=environment(release),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(zip(LAUNCHES, json.loads(done.stdout), strict=True))


@pytest.mark.live
@pytest.mark.parametrize("name", LAUNCHES)
def test_a_verdict_changes_only_with_its_facts(name: str) -> None:
    print(f"\n{name}: {' '.join(LAUNCHES[name][2])} on {LAUNCHES[name][0]}")
    before: dict[str, Any] | None = None
    for release in RELEASES:
        now = answers(release)[name]
        if "error" in now or now["refused"]:
            print(f"  {release:14} {now.get('error', 'refused by SGLang')}")
            before = None
            continue
        print(f"  {release:14} {' '.join(i for i, a in now.items() if i != 'refused' and a['fires']) or '-'}")
        for rule_id, answer in now.items():
            if before is None or rule_id == "refused" or answer["fires"] == before[rule_id]["fires"]:
                continue
            assert answer["read"] != before[rule_id]["read"], (
                f"{rule_id} changed on {release} without a new fact"
            )
        before = now

"""Run many preflight checks in one process of one release: JSON cases on stdin, JSON answers on stdout.

A case is ``{"argv": [...], "gpu": ..., "model_config": ..., "env": {...}}``. The answer is the report's JSON, or
``{"error": ..., "hint": ...}``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.trees import tree

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "qwen3.5-122b-rtx-pro-6000"
SERVER_MODEL = ["python", "-m", "sglang.launch_server", "--model-path"]
LAUNCH = [
    *("python", "-m", "sglang.launch_server", "--model-path", "Qwen/Qwen3.5-122B-A10B-FP8", "--tp", "4"),
    *("--attention-backend", "triton", "--speculative-algorithm", "NEXTN", "--speculative-num-steps", "3"),
    *("--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"),
    "--enable-fused-moe-sum-all-reduce",
]


def environment(release: str) -> dict[str, str]:
    """This process's environment with one release of SGLang on the path, and nothing that changes a check."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SGLANG", "PYTHON"))}
    return env | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(tree(release)))), "PYTHONWARNINGS": "ignore"}


def example(*extra: str, gpu: str = "4xRTX-PRO-6000", **more: Any) -> dict[str, Any]:
    """A case of the example launch."""
    return {"argv": [*LAUNCH, *extra], "gpu": gpu, "model_config": str(EXAMPLE), **more}


def run(release: str, cases: Sequence[dict[str, Any]], cwd: Path | None = None) -> list[dict[str, Any]]:
    """The answers to `cases` from one fresh process with `release`."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.live.preflight_cases"],
        input=json.dumps(list(cases)),
        capture_output=True,
        text=True,
        env=environment(release),
        cwd=cwd or ROOT,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


def cli(release: str, *words: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """The ``sglang-guards`` command with `release`."""
    return subprocess.run(
        [sys.executable, "-m", "sglang_guards", *words],
        capture_output=True,
        text=True,
        env=environment(release) | env,
        cwd=cwd or ROOT,
        timeout=300,
        check=False,
    )


def _answer(case: dict[str, Any]) -> dict[str, Any]:
    from sglang_guards.preflight import launch_check

    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | case.pop("env", {})
    try:
        return launch_check.check(env=env, **({"build": False} | case)).to_dict()
    except launch_check.CouldNotCheck as error:
        return {"error": error.message, "hint": error.hint}


if __name__ == "__main__":
    print(json.dumps([_answer(case) for case in json.load(sys.stdin)]))

"""Start real SGLang processes for the live tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests.launches.checks import MODELS, ROOT, environment

SITE = Path(__file__).parent / "site"
FLAG = "--enable-fused-moe-sum-all-reduce"
QWEN3 = str(MODELS / "qwen3-30b-a3b-bf16")


def live_environment(release: str, **more: str) -> dict[str, str]:
    """`release` with the guard and the test's GPU pose as its only plugins."""
    try:
        metadata.distribution("sglang-guards")
    except metadata.PackageNotFoundError:
        pytest.skip("sglang-guards is not installed here, so SGLang cannot find its plugin; run tools/env.sh")
    made = environment(release, SGLANG_PLUGINS="sglang_guards_pose,sglang_guards", **more)
    extra = [
        str(SITE),
        *(p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if "dist-info" in _listing(p)),
    ]
    return made | {"PYTHONPATH": os.pathsep.join([*extra, made["PYTHONPATH"]])}


def _listing(folder: str) -> str:
    path = Path(folder)
    return " ".join(entry.name for entry in path.glob("sglang_guards*")) if folder and path.is_dir() else ""


def hooked(release: str, scenarios: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Answers of tests/live/hooked.py for each scenario."""
    env = live_environment(release)
    env["SGLANG_PLUGINS"] = "sglang_guards"
    done = subprocess.run(
        [sys.executable, "-m", "tests.live.hooked"],
        input=json.dumps(list(scenarios)),
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return answers


@cache
def hook_answers(release: str) -> dict[str, dict[str, dict[str, Any]]]:
    """Answers to the scenarios of both files on the hook, by file and name: one process of a release for all."""
    from tests.live import test_auto_enable_live, test_hook_in_process

    asked: dict[str, dict[str, dict[str, Any]]] = {}
    if release in test_hook_in_process.RELEASES:
        asked["hook"] = test_hook_in_process.SCENARIOS
    if release in test_auto_enable_live.RELEASES:
        asked["auto"] = {name: scenario for name, (scenario, _) in test_auto_enable_live.SCENARIOS.items()}
    answers = iter(hooked(release, [scenario for of in asked.values() for scenario in of.values()]))
    return {file: {name: next(answers) for name in of} for file, of in asked.items()}


def launched(release: str, command: Sequence[str], gpu: str = "4xH100", **env: str) -> tuple[int, str]:
    """Exit code and the text of both streams of a real launcher (posed as `gpu`)."""
    done = subprocess.run(
        [sys.executable, *command],
        env=live_environment(release, SGLANG_GUARDS_TEST_GPU=gpu, **env),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout

"""Judge many launches on one SGLang release: one process per release, real resolution, simulated GPUs."""

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
MODELS = ROOT / "tests" / "launches" / "models"


def environment(release: str, **more: str) -> dict[str, str]:
    """The environment in which `release` is the installed SGLang."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SGLANG_", "PYTHONPATH"))}
    path = os.pathsep.join([str(ROOT), str(tree(release))])
    return kept | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"} | more


def check_all(release: str, launches: Sequence[dict[str, Any]], timeout: float = 600) -> list[dict[str, Any]]:
    """One JSON report per launch, or ``{"error": …}`` of exit 2.

    A launch has `argv`, `gpu`, a `model` key, and where needed `env` (added to this one); it is built
    only with `build`.
    """
    asked = [
        {
            "argv": launch["argv"],
            "gpu": launch["gpu"],
            "env": launch.get("env") or None,
            "build": launch.get("build", False),
            "model_config": str(MODELS / launch["model"]) if launch.get("model") else None,
        }
        for launch in launches
    ]
    done = subprocess.run(
        [sys.executable, "-m", "tests.launches.checks"],
        input=json.dumps(asked),
        env=environment(release),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


def _main() -> None:
    from sglang_guards.errors import CouldNotCheck
    from sglang_guards.preflight import launch_check

    answers: list[dict[str, Any]] = []
    for launch in json.load(sys.stdin):
        try:
            argv = launch.pop("argv")
            launch["env"] = dict(os.environ) | (launch["env"] or {})
            answers.append(launch_check.check(argv, **launch).to_dict())
        except CouldNotCheck as error:
            answers.append({"error": {"message": str(error)}})
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    _main()

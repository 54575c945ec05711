"""Generated faults, at least 2,000 in the full matrix: each leaves the launch alone and is said in the log."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launches.checks import environment
from tests.live.runs import FLAG, QWEN3

#: Examples of each kind: an eighth here, all of them in the full matrix (`docs/evidence.md`).
EXAMPLES = 700 if os.environ.get("SGLANG_GUARDS_MATRIX") == "all" else 80
ARGV = ["--model-path", QWEN3, "--tp", "4", FLAG]


@pytest.mark.live
@pytest.mark.parametrize("release", ["0.5.15", "0.5.23"])
def test_a_launch_survives_every_fault(release: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.live.faults"],
        input=json.dumps({"argv": ARGV, "examples": EXAMPLES}),
        env=environment(release),
        cwd=tmp_path,  # nonsense paths of reports are written there
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["failures"] == []
    assert answer["total"] >= EXAMPLES * 1.4
    print(f"SGLang {release}: {answer['total']} faults survived")

"""Start-up stays cheap: what the launcher parses and imports is counted, because times depend on the machine.

`tools/evidence.py overhead` measures the time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.launches.checks import ROOT
from tests.trees import REFERENCE, tree

pytestmark = pytest.mark.live

#: What 0.5.15 needs, and a fifth more. A larger need is a choice: find out first which rule asks for it.
MOST = {"modules": 124, "statements": 53, "bytes": 117_000}


def test_a_launcher_parses_and_imports_little() -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith("SGLANG")}
    env |= {"PYTHONPATH": f"{ROOT}{os.pathsep}{tree(REFERENCE)}", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "tests.live.startup_work"]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=True)
    counted = json.loads(done.stdout.splitlines()[-1])
    assert counted["statements"] > 0, "nothing was parsed: the rules did not run"
    assert {what: n for what, n in counted.items() if n > MOST[what]} == {}

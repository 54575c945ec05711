"""Random launches on several releases: never a traceback, the same answer twice, valid JSON, fixes that fix."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.launches.checks import ROOT, environment
from tests.trees import FLAG_RELEASES, running

#: Each launch is resolved two or three times, and each machine imports SGLang anew: few here, many in the full matrix.
COUNT = "300" if os.environ.get("SGLANG_GUARDS_MATRIX") == "all" else "24"


@pytest.mark.live
@pytest.mark.parametrize("release", running("fuzz", FLAG_RELEASES))
def test_random_launches(release: str) -> None:
    command = [sys.executable, "-m", "tests.live.fuzz", "7", COUNT]
    done = subprocess.run(
        command, env=environment(release), cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["breaches"] == []
    print(f"SGLang {release}: {answer['ends']}")

"""The helper process: it answers many checks, survives bad ones, and never outlives its caller."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.live.preflight_cases import ROOT, environment, example, run

pytestmark = pytest.mark.live

_HOLD = """
import json, sys, time
from sglang_guards import preflight
from sglang_guards.preflight import worker_client
preflight.check(**json.loads(sys.argv[1]))
print(next(iter(worker_client._helpers.values())).pid, flush=True)
time.sleep(600)
"""


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_killed_caller_takes_its_helper_along() -> None:
    caller = subprocess.Popen(
        [sys.executable, "-c", _HOLD, json.dumps(example())],
        env=environment("0.5.15"),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert caller.stdout is not None
    pid = int(caller.stdout.readline())
    assert alive(pid)
    os.kill(caller.pid, signal.SIGKILL)
    caller.wait()
    until = time.monotonic() + 15
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.1)
    assert not alive(pid)


def test_a_hanging_resolution_is_ended() -> None:
    code = (
        "import json, sys\n"
        "from sglang_guards import preflight\nfrom sglang_guards.errors import CouldNotCheck\n"
        "from sglang_guards.preflight import worker_client\n"
        "worker_client.RESOLVE_S, worker_client.BUILD_S = 0.05, 0.0\n"
        "case = json.loads(sys.argv[1])\n"
        "try:\n    preflight.check(**case)\nexcept CouldNotCheck as e:\n    print(e.message)\n"
        "worker_client.RESOLVE_S = 60.0\nprint(preflight.check(**case).verdict)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(example())],
        env=environment("0.5.15"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.splitlines() == ["SGLang's resolution did not end within 0.05 s", "pass"], done.stderr[
        -2000:
    ]


def test_poses_do_not_leak_into_each_other() -> None:
    gpus = ("4xB200", "4xH100", "4xRTX-PRO-6000", "4xB200", "8xMI300X", "4xH100")
    plain = [w for w in example()["argv"] if not w.startswith("--speculative")]
    argv = plain[:9] + plain[-1:]
    reports = run("0.5.18", [{**example(gpu=gpu), "argv": argv} for gpu in gpus])
    platforms = [r["launch"]["facts"]["gpu.platform"]["value"] for r in reports]
    assert platforms == ["cuda", "cuda", "cuda", "cuda", "hip", "cuda"]
    assert reports[0]["findings"] == reports[3]["findings"]
    assert reports[1]["findings"] == reports[5]["findings"]
    assert [f["id"] for f in reports[0]["findings"]] != [f["id"] for f in reports[1]["findings"]]
    assert "FMS102" in [f["id"] for f in reports[4]["findings"]]

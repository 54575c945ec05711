"""Run many preflight checks in one process of one release: lists of JSON cases on stdin, JSON answers on stdout.

A case is ``{"argv": [...], "gpu": ..., "model_config": ..., "env": {...}}``. The answer is the report's JSON, or
``{"error": ..., "hint": ...}``.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.trees import REFERENCE, tree

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


#: Processes that answer cases, by release, folder and environment: that of the release that most tests take, and the
#: last other one, since each holds a helper with SGLang in it.
_SERVERS: dict[tuple[str, ...], subprocess.Popen[str]] = {}
_MOST = 2


def run(release: str, cases: Sequence[dict[str, Any]], cwd: Path | None = None) -> list[dict[str, Any]]:
    """The answers to `cases` from a process with `release`; it is kept for the next ones of the same environment."""
    env = environment(release)
    key = (
        release,
        str(cwd or ROOT),
        *(f"{k}={v}" for k, v in sorted(env.items()) if k != "PYTEST_CURRENT_TEST"),
    )
    server = _SERVERS.pop(key, None)
    if server is None:
        while len(_SERVERS) >= _MOST:
            _end(_SERVERS.pop(min(_SERVERS, key=lambda other: other[0] == REFERENCE)))
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.live.preflight_cases"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
            cwd=cwd or ROOT,
        )
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps(list(cases)) + "\n")
    server.stdin.flush()
    watch = threading.Timer(300, server.kill)  # a hang ends in an empty answer
    watch.start()
    line = server.stdout.readline()
    watch.cancel()
    assert line, f"the process of SGLang {release} ended with {server.wait()}"
    _SERVERS[key] = server  # last: most recently used
    answers: list[dict[str, Any]] = json.loads(line)
    return answers


def _end(server: subprocess.Popen[str]) -> None:
    """Its input's end is its end."""
    server.communicate(timeout=60)


@atexit.register
def _end_all() -> None:
    while _SERVERS:
        _end(_SERVERS.popitem()[1])


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
    for cases in sys.stdin:
        print(json.dumps([_answer(case) for case in json.loads(cases)]), flush=True)

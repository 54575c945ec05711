"""SGLANG_GUARDS_BUILD=1: let SGLang's own constructors speak before the launcher goes on.

The build runs in a process of its own, which sees no GPU and ends before CUDA is touched here; whatever goes wrong in
it is a line in the log, never a reason not to start.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Sequence

from sglang_guards.build.facts import facts as build_facts
from sglang_guards.build.model import BuildResult
from sglang_guards.launch.facts import Fact

#: Seconds for the whole of it: SGLang's import, one resolution, one build.
LIMIT_S = 90.0


@functools.cache
def facts(argv: tuple[str, ...]) -> tuple[dict[str, Fact], tuple[str, ...]]:
    """Facts ``build.*`` of the launch that this process was started with, and notes; once per command line."""
    command = launch_command(argv)
    if command is None:
        return {}, (
            "SGLANG_GUARDS_BUILD: this process was not started by SGLang's launcher; nothing was built",
        )
    try:
        done = subprocess.run(
            [sys.executable, "-m", "sglang_guards", "check", "--format", "json", "--", *command],
            env=os.environ | {"SGLANG_GUARDS_BUILD": "", "SGLANG_GUARDS_REPORT": ""},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=LIMIT_S,
            check=False,
        )
        report = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return {}, (f"SGLANG_GUARDS_BUILD: not built within {LIMIT_S:g} s",)
    except (OSError, ValueError) as error:
        return {}, (f"SGLANG_GUARDS_BUILD: nothing was built: {type(error).__name__}: {error}",)
    if report.get("build") is None:
        why = (report.get("error") or {}).get("message") or "the check built nothing"
        return {}, (f"SGLANG_GUARDS_BUILD: nothing was built: {why}",)
    return build_facts(BuildResult.from_dict(report["build"])), ()


def launch_command(argv: Sequence[str]) -> list[str] | None:
    """The command as it was typed, told from ``sys.argv``."""
    if not argv:
        return None
    name = os.path.basename(argv[0])
    if name in ("sglang", "sglang.exe"):
        return ["sglang", *argv[1:]]
    if name == "launch_server.py":
        return ["python", "-m", "sglang.launch_server", *argv[1:]]
    return None

"""Run as a script: what a start-up reads, counted in benchmarks/bench_overhead.py's own launcher, as JSON."""

from __future__ import annotations

import ast
import json
import sys
from typing import Any

from benchmarks import bench_overhead

parsed: list[int] = []
parse = ast.parse


def counted(source: Any, *args: Any, **kwargs: Any) -> Any:
    if str(sys._getframe(1).f_globals.get("__name__", "")).startswith("sglang_guards."):
        parsed.append(len(source.lstrip("\n")))  # the blank lines in front only keep the numbers
    return parse(source, *args, **kwargs)


ast.parse = counted
bench_overhead.launcher()
modules = bench_overhead._ours()
print(json.dumps({"modules": len(modules), "statements": len(parsed), "bytes": sum(parsed)}))

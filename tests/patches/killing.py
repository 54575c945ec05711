"""Run tools/patches.py in a process of its own and kill it at the n-th operation that changes something.

The operations are the functions of `os` that change files below the tree, and the start of every git on it (the
rehearsal in a scratch folder touches nothing of it). A write can also be cut in half. SIGKILL is what an OOM killer or
an impatient operator sends: no handler, no `finally`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools import patches

OPERATIONS = ("open", "write", "chmod", "fsync", "replace", "mkdir", "unlink", "rmdir")
#: Audit events of changes that would go past the functions above, with the place of the path among their arguments.
_PAST = {
    "open": 0,
    "os.rename": 0,
    "os.remove": 0,
    "os.rmdir": 0,
    "os.mkdir": 0,
    "os.chmod": 0,
    "os.truncate": 0,
}


class Points:
    """Counts operations; the process dies at number `at`."""

    def __init__(self, at: int, tree: str) -> None:
        self.at, self.tree, self.passed, self.inside = at, tree, 0, False

    def below(self, path: Any) -> bool:
        name = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else str(path)
        return name.startswith(self.tree)

    def reach(self) -> bool:
        self.passed += 1
        return self.passed == self.at

    def wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            if self.inside or not self.below(args[0]):
                return original(*args, **kwargs)
            if self.reach():
                os.kill(os.getpid(), signal.SIGKILL)
            if original is REAL["write"] and self.reach():
                REAL["write"](args[0], args[1][: len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            self.inside = True
            try:
                return original(*args, **kwargs)
            finally:
                self.inside = False

        return counted


REAL = {name: getattr(os, name) for name in OPERATIONS}
#: A killed process loses nothing that it has written; a sync is a point to be killed at, and only slow to wait for.
REAL["fsync"] = lambda handle: None


def run(*args: str, at: int) -> tuple[str, int]:
    """«killed», or «ended» and the exit code. The tree is the last argument."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
            points = Points(at, args[-1])
            for name in OPERATIONS:
                setattr(os, name, points.wrap(REAL[name]))
            started = subprocess.Popen.__init__

            def popen(*words: Any, **options: Any) -> None:
                # git's own files are git's: what it does is one operation here
                if args[-1] in words[1] and points.reach():
                    os.kill(os.getpid(), signal.SIGKILL)
                points.inside = True
                try:
                    started(*words, **options)
                finally:
                    points.inside = False

            subprocess.Popen.__init__ = popen  # type: ignore[method-assign]
            code = patches.main(["apply", *args])
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return "killed", 0
    return "ended", os.waitstatus_to_exitcode(status)


def unseen(tree: Path, *args: str) -> list[str]:
    """Changes below `tree` that a complete run makes past the counted operations."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
            points = Points(0, args[-1])
            for name in OPERATIONS:
                setattr(os, name, points.wrap(REAL[name]))

            def look(event: str, values: tuple[Any, ...]) -> None:
                if event not in _PAST or points.inside:
                    return
                path = values[_PAST[event]]
                if event == "open" and not (isinstance(values[1], str) and set(values[1]) & set("wax+")):
                    return
                if str(path).startswith(str(tree)):
                    REAL["write"](write, f"{event} {path}\n".encode())

            sys.addaudithook(look)
            patches.main(["apply", *args])
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        found = pipe.read().splitlines()
    os.waitpid(child, 0)
    return found

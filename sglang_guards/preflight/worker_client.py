"""The caller's side of the helper process: start it once per environment that matters, ask it, end it."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from typing import Any

from sglang_guards.errors import CouldNotCheck
from sglang_guards.preflight import plugins

#: Seconds for SGLang's import (4 to 6 on a small machine, more on a cold disk), one resolution, and one build.
IMPORT_S = 180.0
RESOLVE_S = 60.0
BUILD_S = 60.0
#: Variables that torch or Python read at import, so that each setting needs a helper of its own. What SGLang reads at
#: import is the business of the helper's machines, and our own and what is read later do not matter.
_AT_IMPORT = (
    "TORCH",
    "PYTORCH_",
    "TRITON_",
    "HF_",
    "TRANSFORMERS_",
    "PYTHON",
    "LD_",
    "HUGGINGFACE_",
    "XDG_CACHE_HOME",
    "MODELSCOPE_",
    "HOME",
)
#: Helpers kept alive; each holds about half a GiB.
_MOST = 2

_START = (
    "import sys; sys.path[:] = sys.argv[2].split(chr(0x1f)); "
    "from sglang_guards.preflight.worker import main; main(int(sys.argv[1]), sys.argv[3])"
)
_Key = tuple[int, str, tuple[str, ...], tuple[tuple[str, str], ...]]


class Helper:
    """One helper process. Use `ask`; it is not safe to share between threads without `_lock`."""

    def __init__(self, env: Mapping[str, str]) -> None:
        answers, theirs = os.pipe()
        self._tools = tempfile.mkdtemp(prefix="sglang-guards-tools-")
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, str(theirs), chr(0x1F).join(_search_path(env)), self._tools],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=dict(env),
                pass_fds=(theirs,),
            )
        finally:
            os.close(theirs)
        self._answers = answers
        self._buffer = b""
        try:
            hello = self._read(IMPORT_S)
            if hello.get("kind") != "ready":
                raise _cannot_import(hello)
        except BaseException:
            self.close()
            raise

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """One answer. Raises `CouldNotCheck` when the helper is gone or hangs."""
        data = (json.dumps(request) + "\n").encode()
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(data)
            stdin.flush()
        except OSError:
            raise CouldNotCheck(
                "the process that resolves launches has ended", "run the check again"
            ) from None
        answer = self._read(float(request["timeout_s"]) + IMPORT_S)
        if answer.get("kind") == "import":
            raise _cannot_import(answer)
        return answer

    def _read(self, timeout_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._answers], [], [], left)[0]:
                raise CouldNotCheck(
                    f"the process that resolves launches did not answer within {timeout_s:.0f} s"
                )
            chunk = os.read(self._answers, 1 << 20)
            if not chunk:
                code = self._process.wait()
                raise CouldNotCheck(f"the process that resolves launches ended with exit code {code}")
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return dict(json.loads(line))

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        """End the process; closing its input is enough unless it hangs."""
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        with contextlib.suppress(OSError):
            os.close(self._answers)
        try:
            self._process.wait(timeout=2)
        except BaseException as error:  # it hangs, or a signal wants this process to end now
            self._process.kill()
            self._process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
        finally:
            shutil.rmtree(self._tools, ignore_errors=True)


def _cannot_import(answer: Mapping[str, Any]) -> CouldNotCheck:
    return CouldNotCheck(
        f"SGLang cannot be imported here: {answer.get('message')}",
        "install what it needs into this Python environment",
    )


def _search_path(env: Mapping[str, str]) -> list[str]:
    """This process's module path, with the folders in front that only the launch's PYTHONPATH names."""
    here = [path or os.getcwd() for path in sys.path]
    extra = [os.path.abspath(path) for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    return [*(path for path in extra if path not in here), *here]


_helpers: dict[_Key, Helper] = {}
_lock = threading.Lock()


def _key(env: Mapping[str, str]) -> _Key:
    matters = sorted((k, v) for k, v in env.items() if k.startswith(_AT_IMPORT) or k == plugins.VARIABLE)
    return os.getpid(), sys.executable, tuple(_search_path(env)), tuple(matters)


def ask(request: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    """Ask the helper for this environment, starting it when there is none."""
    with _lock:
        key = _key(env)
        helper = _helpers.pop(key, None)
        if helper is None or not helper.alive:
            while len(_helpers) >= _MOST:
                _helpers.pop(next(iter(_helpers))).close()
            helper = Helper(env)
        try:
            answer = helper.ask(request)
        except BaseException:
            helper.close()
            raise
        _helpers[key] = helper  # last: most recently used
        return answer


@atexit.register
def close_all() -> None:
    """End every helper that this process started (a forked copy leaves its parent's alone)."""
    for key, helper in list(_helpers.items()):
        if key[0] == os.getpid():
            helper.close()
        del _helpers[key]

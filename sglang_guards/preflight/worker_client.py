"""The caller's side of the helper process: start it once per environment that matters, ask it, end it."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from sglang_guards.errors import CouldNotCheck

#: Seconds for SGLang's import (4 to 6 on a small machine, more on a cold disk) and for one resolution.
IMPORT_S = 180.0
RESOLVE_S = 60.0
#: Variables that SGLang, torch or Python read at import; our own and what is read later do not matter.
_AT_IMPORT = (
    "SGLANG_",
    "SGL_",
    "TORCH",
    "PYTORCH_",
    "TRITON_",
    "HF_",
    "TRANSFORMERS_",
    "FLASHINFER_",
    "PYTHON",
    "LD_",
)
#: Helpers kept alive; each holds about half a GiB.
_MOST = 2

_START = (
    "import sys; sys.path[:] = sys.argv[2].split(chr(0x1f)); "
    "from sglang_guards.preflight.worker import main; main(int(sys.argv[1]))"
)
_Key = tuple[int, str, tuple[str, ...], tuple[tuple[str, str], ...]]


class Helper:
    """One helper process. Use `ask`; it is not safe to share between threads without `_lock`."""

    def __init__(self, env: Mapping[str, str]) -> None:
        answers, theirs = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, str(theirs), chr(0x1F).join(_search_path())],
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
                raise CouldNotCheck(
                    f"SGLang cannot be imported here: {hello.get('message')}",
                    "install what it needs into this Python environment",
                )
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
        return self._read(float(request["timeout_s"]) + 10.0)

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
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _search_path() -> list[str]:
    return [path or os.getcwd() for path in sys.path]


_helpers: dict[_Key, Helper] = {}
_lock = threading.Lock()


def _key(env: Mapping[str, str]) -> _Key:
    matters = sorted(
        (k, v) for k, v in env.items() if k.startswith(_AT_IMPORT) and not k.startswith("SGLANG_GUARDS")
    )
    return os.getpid(), sys.executable, tuple(_search_path()), tuple(matters)


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

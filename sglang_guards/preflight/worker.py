"""The helper process of `check`: imports SGLang once, then forks for each request.

Requests are JSON lines on stdin, answers JSON lines on the descriptor given as argument, so that what SGLang prints
cannot get between them. It ends when stdin closes (the caller ended, however it ended).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from sglang_guards.preflight import resolve, simulated_gpu

#: Variables that every check sets: nothing may go to the network.
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
_POLL_S = 5.0


def main(answers_fd: int) -> None:
    """Serve until stdin closes."""
    requests_fd = os.dup(0)
    os.set_inheritable(requests_fd, False)
    with open(os.devnull) as null:
        os.dup2(null.fileno(), 0)
    folder = Path(tempfile.mkdtemp(prefix="sglang-guards-tools-"))
    log = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the process)
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    try:
        simulated_gpu.write_tools(folder)
        os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        os.environ.update(OFFLINE)
        _say(answers_fd, _import())
        _serve(requests_fd, answers_fd, str(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _import() -> dict[str, Any]:
    try:
        simulated_gpu.hide()
        simulated_gpu.warm_up()
    except Exception as error:
        return {"kind": "trouble", "message": _first_line(error), "trace": traceback.format_exc()}
    return {"kind": "ready"}


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def _say(fd: int, answer: dict[str, Any]) -> None:
    data = (json.dumps(answer) + "\n").encode()
    with contextlib.suppress(BrokenPipeError):
        while data:
            data = data[os.write(fd, data) :]


def _serve(requests_fd: int, answers_fd: int, tools: str) -> None:
    parent = os.getppid()
    buffer = b""
    while True:
        while b"\n" not in buffer:
            if not select.select([requests_fd], [], [], _POLL_S)[0]:
                if os.getppid() != parent:  # a stray copy of the pipe keeps it open
                    return
                continue
            chunk = os.read(requests_fd, 1 << 16)
            if not chunk:
                return
            buffer += chunk
        line, _, buffer = buffer.partition(b"\n")
        request = json.loads(line)
        answer = _in_child(request, requests_fd, tools)
        if answer is None:
            shutil.rmtree(request["scratch"], ignore_errors=True)
            return
        _say(answers_fd, answer)


def _in_child(request: dict[str, Any], requests_fd: int, tools: str) -> dict[str, Any] | None:
    """One request in a process of its own; None when the caller is gone."""
    read_fd, write_fd = os.pipe()
    log = tempfile.TemporaryFile()  # noqa: SIM115
    pid = os.fork()
    if pid == 0:
        _child(request, write_fd, log.fileno(), tools)
    os.close(write_fd)
    try:
        answer = _collect(pid, read_fd, requests_fd, float(request["timeout_s"]))
        if answer is not None and answer.get("kind") in ("died", "trouble"):
            log.seek(0)
            answer["log"] = log.read()[-2000:].decode(errors="replace")
        return answer
    finally:
        os.close(read_fd)
        log.close()


def _child(request: dict[str, Any], write_fd: int, log_fd: int, tools: str) -> None:
    try:
        os.setsid()
        os.dup2(log_fd, 1)
        os.dup2(log_fd, 2)
        os.environ.clear()
        os.environ.update(request["env"])
        os.environ.update(OFFLINE)
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        os.environ["PATH"] = f"{tools}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        os.chdir(request["cwd"])
        answer = resolve.answer(request)
    except BaseException as error:
        answer = {"kind": "trouble", "message": _first_line(error), "trace": traceback.format_exc()}
    with contextlib.suppress(BaseException):
        _say(write_fd, answer)
    os._exit(0)


def _collect(pid: int, read_fd: int, requests_fd: int, timeout_s: float) -> dict[str, Any] | None:
    data = b""
    deadline = time.monotonic() + timeout_s
    try:
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return {
                    "kind": "timeout",
                    "message": f"SGLang's resolution did not end within {timeout_s:g} s",
                }
            ready = select.select([read_fd, requests_fd], [], [], left)[0]
            if read_fd in ready:
                chunk = os.read(read_fd, 1 << 20)
                data += chunk
                if data.endswith(b"\n"):
                    return dict(json.loads(data))
                if not chunk:
                    _, status = os.waitpid(pid, 0)
                    pid = 0
                    how = (
                        signal.Signals(os.WTERMSIG(status)).name
                        if os.WIFSIGNALED(status)
                        else "without an answer"
                    )
                    return {"kind": "died", "message": f"SGLang's resolution ended {how}"}
            elif requests_fd in ready:  # one request at a time: readable means closed
                return None
    finally:
        if pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]))

"""The helper process of `check`: imports torch once, SGLang once for each kind of GPU, then forks for each request.

SGLang computes constants while it is imported (`_is_cuda = is_cuda()`), so a process takes the place of one machine
before it imports SGLang and keeps it: the helper forks one such process for each simulated GPU that it is asked for.

Requests are JSON lines on stdin, answers JSON lines on the descriptor given as argument, so that what SGLang prints
cannot get between them. All of it ends when stdin closes (the caller ended, however it ended).
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from sglang_guards.build import ahead, construct, stand_ins, torch_on_meta
from sglang_guards.launch.gpus import Gpu
from sglang_guards.preflight import plugins, resolve, simulated_gpu
from sglang_guards.preflight.messages import Answer, Request

#: Variables that every check sets: nothing may go to the network.
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
_POLL_S = 5.0


def main(answers_fd: int, tools: str) -> None:
    """Serve until stdin closes. The caller made the folder `tools`, and both remove it: whoever is left."""
    requests_fd = os.dup(0)
    os.set_inheritable(requests_fd, False)
    with open(os.devnull) as null:
        os.dup2(null.fileno(), 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the caller too, which ends this process
    folder = Path(tools)
    log = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the process)
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    try:
        simulated_gpu.write_tools(folder)
        os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        os.environ.update(OFFLINE)
        _say(answers_fd, _prepare())
        _route(requests_fd, answers_fd, str(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _importing() -> Iterator[None]:
    """No garbage collection while much is imported: it finds nothing there and takes a fifth of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # nor later: and children share the pages that it would have touched
        gc.enable()


def _prepare() -> Answer:
    try:
        with _importing():
            simulated_gpu.hide()
            plugins.leave_out()
            torch_on_meta.prepare_libraries()
    except Exception as error:
        return {"kind": "trouble", "message": _first_line(error), "trace": traceback.format_exc()}
    return {"kind": "ready"}


@dataclass(frozen=True)
class _Machine:
    """A process that imported SGLang as one kind of machine."""

    pid: int
    requests: int
    answers: int

    def close(self) -> None:
        for fd in (self.requests, self.answers):
            with contextlib.suppress(OSError):
                os.close(fd)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


#: Machines kept alive by one helper; each adds some 200 MiB to what it shares with the others.
_MOST_MACHINES = 3


def _route(requests_fd: int, answers_fd: int, tools: str) -> None:
    """Hand each request to the process of its machine, starting that when there is none."""
    machines: dict[str, _Machine] = {}

    def asked(request: Request) -> Answer | None:
        env = _at_import(request["env"])
        key = json.dumps([request["gpu"], env, request["ahead"]], sort_keys=True)
        machine = machines.pop(key, None)
        if machine is None:
            while len(machines) >= _MOST_MACHINES:
                machines.pop(next(iter(machines))).close()
            machine = _start(request["gpu"], env, tools, [requests_fd, answers_fd], machines.values())
        answer = _ask(machine, request, requests_fd)
        if answer is None or answer.get("kind") == "import":
            machine.close()
        else:
            machines[key] = machine  # last: most recently used
        return answer

    try:
        for request in _lines(requests_fd):
            answer = asked({**request, "ahead": True})
            if answer is not None and answer.get("kind") == "too early":
                answer = asked({**request, "ahead": False})
            if answer is None:
                shutil.rmtree(request["scratch"], ignore_errors=True)
                return
            _say(answers_fd, answer)
    finally:
        for machine in machines.values():
            machine.close()


def _at_import(env: Mapping[str, str]) -> dict[str, str]:
    """What SGLang, a fork or FlashInfer may read at import: all but our own."""
    return {k: v for k, v in env.items() if not k.startswith("SGLANG_GUARDS") or k == plugins.VARIABLE}


def _set_environment(env: Mapping[str, str], tools: str) -> None:
    os.environ.clear()
    os.environ.update(env)
    os.environ.update(OFFLINE)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ["PATH"] = f"{tools}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


def _start(
    gpu: Mapping[str, Any],
    env: Mapping[str, str],
    tools: str,
    inherited: list[int],
    others: Iterable[_Machine],
) -> _Machine:
    requests_read, requests_write = os.pipe()
    answers_read, answers_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            for fd in (
                *inherited,
                requests_write,
                answers_read,
                *(f for m in others for f in (m.requests, m.answers)),
            ):
                os.close(fd)
            _set_environment(env, tools)
            _be(Gpu(**gpu), requests_read, answers_write, tools)
        os._exit(0)
    os.close(requests_read)
    os.close(answers_write)
    return _Machine(pid, requests_write, answers_read)


def _be(gpu: Gpu, requests_fd: int, answers_fd: int, tools: str) -> None:
    """Import SGLang as this machine, then serve."""
    try:
        with _importing():
            simulated_gpu.strike(gpu)
            construct.prepare(gpu)
            simulated_gpu.warm_up()
    except (Exception, stand_ins.CannotTell) as error:
        _say(answers_fd, {"kind": "import", "message": _first_line(error), "trace": traceback.format_exc()})
        return
    _serve(requests_fd, answers_fd, tools)


def _ask(machine: _Machine, request: Request, requests_fd: int) -> Answer | None:
    """One answer of a machine; None when the caller is gone."""
    data = (json.dumps(request) + "\n").encode()
    try:
        while data:
            data = data[os.write(machine.requests, data) :]
    except BrokenPipeError:  # SGLang could not be imported: its answer says why
        pass
    buffer = b""
    while not buffer.endswith(b"\n"):
        ready = select.select([machine.answers, requests_fd], [], [])[0]
        if machine.answers in ready:
            chunk = os.read(machine.answers, 1 << 20)
            if not chunk:
                return {
                    "kind": "import",
                    "message": "the process that imports SGLang ended without an answer",
                }
            buffer += chunk
        elif requests_fd in ready:  # one request at a time: readable means closed
            return None
    return cast(Answer, json.loads(buffer))


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def _say(fd: int, answer: Answer) -> None:
    data = (json.dumps(answer) + "\n").encode()
    with contextlib.suppress(BrokenPipeError):
        while data:
            data = data[os.write(fd, data) :]


def _lines(requests_fd: int) -> Iterator[Request]:
    """Requests until the pipe closes, or the caller ended while a stray copy of the pipe keeps it open."""
    parent = os.getppid()
    buffer = b""
    while True:
        while b"\n" not in buffer:
            if not select.select([requests_fd], [], [], _POLL_S)[0]:
                if os.getppid() != parent:
                    return
                continue
            chunk = os.read(requests_fd, 1 << 16)
            if not chunk:
                return
            buffer += chunk
        line, _, buffer = buffer.partition(b"\n")
        yield json.loads(line)


def _serve(requests_fd: int, answers_fd: int, tools: str) -> None:
    read_ahead: frozenset[str] | None = None
    for request in _lines(requests_fd):
        if request["build_s"] and request["ahead"] and read_ahead is None:
            with _importing():
                read_ahead = ahead.import_modules()
        request["read_ahead"] = sorted(read_ahead or ())
        answer = _in_child(request, requests_fd, tools)
        if answer is None:
            shutil.rmtree(request["scratch"], ignore_errors=True)
            return
        _say(answers_fd, answer)


def _in_child(request: Request, requests_fd: int, tools: str) -> Answer | None:
    """One request in a process of its own; None when the caller is gone."""
    read_fd, write_fd = os.pipe()
    log = tempfile.TemporaryFile()  # noqa: SIM115
    pid = os.fork()
    if pid == 0:
        os.close(read_fd)  # or a write would wait for ever once the reader is gone
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


def _child(request: Request, write_fd: int, log_fd: int, tools: str) -> None:
    try:
        os.setsid()
        os.dup2(log_fd, 1)
        os.dup2(log_fd, 2)
        _set_environment(request["env"], tools)
        os.chdir(request["cwd"])
        answer = resolve.answer(request)
    except BaseException as error:
        answer = {"kind": "trouble", "message": _first_line(error), "trace": traceback.format_exc()}
    with contextlib.suppress(BaseException):
        _say(write_fd, answer)
    os._exit(0)


def _collect(pid: int, read_fd: int, requests_fd: int, timeout_s: float) -> Answer | None:
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
                    return cast(Answer, json.loads(data))
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
    main(int(sys.argv[1]), sys.argv[3])

"""Run something for so long and no longer, in a server's process: without signals, and without leaving it running."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable


class OutOfTime(BaseException):
    """Raised inside what ran too long; no ``except Exception`` on the way holds it up."""


def within(seconds: float, work: Callable[[], None]) -> bool:
    """Whether `work` ended in time; what it raised is raised here. Where no thread can be had it runs as it is."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except OutOfTime:
            return
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            raised.append(error)

    thread = threading.Thread(target=run, name="sglang-guards-rules", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        work()
        return True
    thread.join(seconds)
    if thread.is_alive():
        ident = ctypes.c_ulong(thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(OutOfTime))
        thread.join(1.0)  # a loop in Python ends at once; one in C cannot be ended, and is left behind
        return False
    if raised:
        raise raised[0]
    return True

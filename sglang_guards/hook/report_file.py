"""Write the report of SGLANG_GUARDS_REPORT: for its owner only, whole or not at all, never through another's link."""

from __future__ import annotations

import contextlib
import os
import select
import stat
import tempfile
import time

#: Seconds that a pipe's reader is waited for.
_PIPE_S = 2.0


def write(path: str, text: str) -> None:
    """Write `text`; raises OSError with the reason where it is not safe or would not end.

    A plain file is replaced in one step, and so is a link: what it points to stays as it is. A device or a pipe is
    written to without waiting for a reader.
    """
    path = os.path.abspath(os.path.expanduser(path))
    try:
        kind = os.lstat(path).st_mode
    except FileNotFoundError:
        kind = 0
    if stat.S_ISDIR(kind):
        raise IsADirectoryError("it is a folder")
    if stat.S_ISLNK(kind) and _leads_to_a_device(path):
        if os.lstat(os.path.dirname(path)).st_mode & stat.S_IWOTH:
            raise PermissionError("it is a link in a folder that everybody may write")
        _into(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY), text)
    elif kind and not stat.S_ISREG(kind) and not stat.S_ISLNK(kind):
        _into(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW), text)
    else:
        _replace(path, text)


def _leads_to_a_device(path: str) -> bool:
    """Whether a link ends at something that is no plain file, such as /dev/stdout's."""
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return False


def _replace(path: str, text: str) -> None:
    fd, temporary = tempfile.mkstemp(prefix=".sglang-guards-", dir=os.path.dirname(path))
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _into(fd: int, text: str) -> None:
    try:
        data, end = text.encode(), time.monotonic() + _PIPE_S
        while data:
            if not select.select([], [fd], [], max(0.0, end - time.monotonic()))[1]:
                raise TimeoutError("its reader does not read")
            with contextlib.suppress(BlockingIOError):
                data = data[os.write(fd, data) :]
    finally:
        os.close(fd)

"""A report as GitHub workflow commands: one annotation for each finding, the verdict as the last line.

The runner takes a line that begins with ``::`` (and ``##[`` anywhere in a line) as a command, so every text of a launch
is escaped: a file name with a line break in it must not become a command of its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from sglang_guards import shell
from sglang_guards.report.model import Finding, Report, Severity
from sglang_guards.report.text import verdict_line

#: A line that starts SGLang, as against one that speaks of it.
_LAUNCH = re.compile(r"^(?!\s*(?:echo|printf|pip|#))[^#]*\bsglang(?:\.launch_server|[ ,\"']+serve)\b")
_MOST_READ = 1 << 20
_LEVEL = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


def render(report: Report, at: str = "") -> str:
    """`at` is where the launch is written, ``FILE`` or ``FILE:LINE``; the annotations then stand beside it."""
    return "\n".join(_lines(report, at))


def failure(message: str, hint: str) -> str:
    """The annotation of exit code 2."""
    return annotation(
        "error", f"{message}\nhint: {hint}" if hint else message, "sglang-guards could not check"
    )


def annotation(level: str, message: str, title: str, at: str = "") -> str:
    """One workflow command; `level` is error, warning or notice."""
    file, line = place(at)
    values = {"file": file, "line": "" if line is None else str(line), "title": title}
    shown = ",".join(f"{name}={_property(value)}" for name, value in values.items() if value)
    return f"::{level} {shown}::{_data(message)}"


def place(at: str) -> tuple[str, int | None]:
    """``launch.sh:3`` -> its file and line (from 1); without a line the first that starts SGLang, if it is found."""
    file, _, line = at.rpartition(":")
    if file and line.isdecimal() and len(line) < 10 and int(line) > 0:
        return file, int(line)
    return at, _launch_line(at)


def _launch_line(file: str) -> int | None:
    try:
        if not os.path.isfile(file):  # a pipe would be waited for
            return None
        with open(file, encoding="utf-8", errors="replace") as script:
            lines = script.read(_MOST_READ).splitlines()
    except (OSError, ValueError):
        return None
    return next((number for number, line in enumerate(lines, 1) if _LAUNCH.search(line)), None)


def _lines(report: Report, at: str) -> Iterator[str]:
    for finding in report.findings:
        title = f"{finding.id} {finding.name}"
        yield annotation(_LEVEL[finding.severity], _message(finding), title, at)
    for line in report.notes:
        yield annotation("notice", line, "sglang-guards", at)
    if report.corrected is not None:
        yield annotation("notice", shell.shown(report.corrected), "corrected command", at)
    yield verdict_line(report)


def _message(finding: Finding) -> str:
    parts = [
        finding.message,
        " ".join(finding.flags),
        finding.cause,
        finding.impact,
        f"fix: {finding.fix.text}" if finding.fix else "",
        f"see: {finding.url}",
    ]
    return "\n".join(part for part in parts if part)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")

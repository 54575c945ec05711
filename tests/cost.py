"""What a run's processor time went to: the dearest files, printed at its end.

Processor time and not wall time, so that a busy machine gives the same list; processes that a test started count with
it, those that live on (the helper that resolves launches) with the test that gave them work. With
SGLANG_GUARDS_TEST_COST the seconds of every file and test go into that JSON file.
"""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Generator, Mapping
from pathlib import Path

import pytest

#: Files in the list.
_LISTED = 10
_TICKS = os.sysconf("SC_CLK_TCK")


def spent(proc: Path = Path("/proc")) -> float:
    """Processor seconds of this process, of its ended children and of the living ones."""
    own, ended = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime + _living(os.getpid(), proc)


def _living(parent: int, proc: Path) -> float:
    """Seconds of the processes below one, each with its own ended children; 0 where there is no /proc."""
    children: dict[int, list[tuple[int, int]]] = {}
    for stat in proc.glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:  # it ended meanwhile
            continue
        fields = text.rpartition(")")[2].split()
        children.setdefault(int(fields[1]), []).append((int(stat.parent.name), sum(map(int, fields[11:15]))))
    ticks, below = 0, [parent]
    while below:
        for pid, used in children.get(below.pop(), ()):
            ticks += used
            below.append(pid)
    return ticks / _TICKS


class Cost:
    """Seconds by test file, of every worker of a run."""

    def __init__(self) -> None:
        self.by_file: dict[str, float] = {}
        self.by_test: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        before = spent()
        try:
            return (yield)
        finally:
            seconds = spent() - before
            _add(self.by_file, {item.nodeid.partition("::")[0]: seconds})
            _add(self.by_test, {item.nodeid: seconds})

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["cost"] = {"by_file": self.by_file, "by_test": self.by_test}

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        told: Mapping[str, Mapping[str, float]] = getattr(node, "workeroutput", {}).get("cost", {})
        _add(self.by_file, told.get("by_file", {}))
        _add(self.by_test, told.get("by_test", {}))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.by_file:
            return
        terminalreporter.section(f"processor time: {sum(self.by_file.values()):.0f} s")
        for name, seconds in sorted(self.by_file.items(), key=lambda row: -row[1])[:_LISTED]:
            terminalreporter.line(f"{seconds:8.1f} s  {name}")
        path = os.environ.get("SGLANG_GUARDS_TEST_COST")
        if path:
            Path(path).write_text(json.dumps({"by_file": self.by_file, "by_test": self.by_test}, indent=1))


def _add(total: dict[str, float], more: Mapping[str, float]) -> None:
    for name, seconds in more.items():
        total[name] = total.get(name, 0.0) + seconds

"""What the contract tests share: one Source per release, and tables «from this release on, this answer»."""

from __future__ import annotations

import functools
import importlib
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from sglang_guards import source as engine
from sglang_guards.source.tree import Answer, Items, Source
from tests.trees import RELEASES, tree

#: An answer per probe: the release from which it holds on, up to the next one that is named.
Table = Mapping[str, Mapping[str, bool | None]]
T = TypeVar("T")


@functools.cache
def source(release: str) -> Source:
    found = engine.find(tree(release))
    assert found is not None
    return found


def from_release(steps: Mapping[str, T], release: str) -> T:
    """The value that holds in a release."""
    at = RELEASES.index(release)
    held = [first for first in steps if RELEASES.index(first) <= at]
    return steps[max(held, key=RELEASES.index)]


def expected(table: Table, release: str) -> dict[str, bool | None]:
    return {probe: from_release(steps, release) for probe, steps in table.items()}


def answers(table: Mapping[str, object], tree_source: Source) -> dict[str, bool | None]:
    return {probe: tree_source.ask(probe).value for probe in table}


def registered(*modules: str) -> set[str]:
    """Names of the probes that the modules register, lists included."""
    for module in modules:
        importlib.import_module(f"sglang_guards.source.probes.{module}")
    wanted = {f"sglang_guards.source.probes.{module}" for module in modules}
    return {name for name, probe in engine.PROBES.items() if probe.fn.__module__ in wanted}


def line_of(tree_source: Source, where: str) -> str:
    """The line that an answer points at; fails where it points nowhere."""
    rel, _, number = where.rpartition(":")
    assert rel.startswith("sglang/"), where
    lines = tree_source.root.parent.joinpath(rel).read_text(encoding="utf-8").split("\n")
    assert 1 <= int(number) <= len(lines), where
    return lines[int(number) - 1]


def check_places(found: Mapping[str, Answer | Items], tree_source: Source) -> None:
    """Every place that is named exists and is a line of code."""
    for name, answer in found.items():
        if answer.where is None:
            continue
        if ":" not in answer.where:
            assert tree_source.root.parent.joinpath(answer.where).is_dir(), (name, answer)
        else:
            line = line_of(tree_source, answer.where).strip()
            assert line, (name, answer)
            assert not line.startswith("#"), (name, answer)


#: Everything that the fused-sum probes read, from every release's folders.
PARTS = (
    "sglang/srt/server_args.py",
    "sglang/srt/arg_groups",
    "sglang/srt/layers/moe",
    "sglang/kernels/ops/moe",
    "sglang/srt/lora/lora_moe_runners.py",
)
FUSED_MOE = "fused_moe.py"
KERNEL = "fused_moe_triton_kernels.py"


class Copy:
    """A copy of the parts of a release that matter here, to be edited by hand."""

    def __init__(self, release: str, into: Path) -> None:
        self.root = into
        for part in PARTS:
            origin = tree(release) / part
            if origin.is_dir():
                shutil.copytree(origin, into / part, ignore=shutil.ignore_patterns("*.json", "__pycache__"))
            elif origin.exists():
                (into / part).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(origin, into / part)

    def file(self, name: str) -> Path:
        folders = ("moe_runner", "triton_utils", "fused_moe_triton", "moe")
        found = [path for path in self.root.rglob(name) if path.parent.name in folders]
        assert len(found) == 1, found
        return found[0]

    def edit(self, name: str, old: str, new: str) -> Copy:
        """Replace one passage; it must be there exactly once, so that a test cannot edit nothing."""
        path = self.file(name)
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1, (name, text.count(old), old)
        path.write_text(text.replace(old, new), encoding="utf-8")
        return self

    def rewrite(self, name: str, change: Callable[[str], str]) -> Copy:
        path = self.file(name)
        before = path.read_text(encoding="utf-8")
        after = change(before)
        assert after != before
        path.write_bytes(after.encode())
        return self

    def ask(self, probe: str) -> Answer:
        return self.source().ask(probe)

    def source(self) -> Source:
        found = engine.find(self.root)
        assert found is not None
        return found

#!/usr/bin/env python3
"""What a new SGLang release changes for this project: fetch its wheel, ask every probe, print what is left to do.

    python tools/new_release.py 0.5.24            against the newest release of tests/releases.py
    python tools/new_release.py 0.5.23 --after 0.5.22   replay a release that is known already

Prints every answer that differs from the release before, as lines to paste into the tables of tests/contract, with the
deciding line; then the patch series that still apply, and the steps that need a person. Exit code 1 where a probe that
had an answer has none any more: those come first.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from sglang_guards.preflight import releases  # noqa: E402
from sglang_guards.source import PROBES, Source, find  # noqa: E402
from sglang_guards.source.tree import find_probe  # noqa: E402
from tests.releases import NEWEST, RELEASES  # noqa: E402
from tools.truth_table import Cell, ask  # noqa: E402

CONTRACT = ROOT / "tests" / "contract"


@dataclass(frozen=True)
class Change:
    """One probe whose answer differs: `before` and `after` are [value, place, reason…]."""

    probe: str
    before: Cell
    after: Cell

    @property
    def lost(self) -> bool:
        """Whether there was an answer and now there is none."""
        return self.before[0] is not None and self.after[0] is None


def changes(before: Source, after: Source) -> list[Change]:
    """Probes that answer differently, lost ones first."""
    old, new = ask(before), ask(after)
    found = [Change(name, old[name], new[name]) for name in new if old[name][0] != new[name][0]]
    return sorted(found, key=lambda change: (not change.lost, change.probe))


def table_of(probe: str) -> str:
    """The file of tests/contract whose table names the probe; empty where none does."""
    for path in sorted(CONTRACT.glob("test_*.py")):
        if re.search(rf'^    "{probe}": ', path.read_text(encoding="utf-8"), re.MULTILINE):
            return path.relative_to(ROOT).as_posix()
    return ""


def shown(release: str, change: Change) -> Iterator[str]:
    """One change: what to paste, and the line that decides."""
    value = change.after[0]
    if isinstance(value, list):
        old = change.before[0] if isinstance(change.before[0], list) else []
        yield f"  {change.probe}: " + " ".join(
            [f"+{name}" for name in value if name not in old]
            + [f"-{name}" for name in old if name not in value]
        )
    else:
        yield f'  "{change.probe}": {{…, "{release}": {value}}},'
    reason = f" ({change.after[2]})" if len(change.after) > 2 else ""
    yield f"      was {change.before[0]} at {change.before[1]}; now at {change.after[1]}{reason}"


def report(release: str, before: str, found: Sequence[Change]) -> Iterator[str]:
    """The whole answer, line by line."""
    find_probe("no such probe")  # imports every module with probes
    yield f"SGLang {release} against {before}: {len(found)} of {len(PROBES)} probes answer differently"
    for title, part in (
        ("no answer any more: read the source, mend the probe", [c for c in found if c.lost]),
        ("other answers: read the line, then paste", [c for c in found if not c.lost]),
    ):
        if not part:
            continue
        yield f"\n{title}"
        for place in sorted({table_of(change.probe) for change in part}):
            yield f" {place or 'no table names these'}"
            for change in part:
                if table_of(change.probe) == place:
                    yield from shown(release, change)
    yield "\nleft to do"
    steps = [
        "python tools/truth_table.py && python tools/docs.py      (the releases page)",
        "SGLANG_GUARDS_MATRIX=all pytest tests/live tests/launches  (hooks, resolution, writers; a difference at run "
        "time goes into sglang_guards/sglang_compat.py)",
        "python tools/patches.py check --newest                   (which patches still apply)",
        "CHANGELOG.md: one line",
    ]
    if release not in RELEASES:
        steps.insert(
            0, f'tests/releases.py: _release("{release}", "what makes it another shape, if anything")'
        )
    yield from (f"  {number}. {step}" for number, step in enumerate(steps, 1))


def main(argv: Sequence[str] | None = None) -> int:
    """The command; see the module's text."""
    options = _options(argv)
    before = options.after or _before(options.release)
    for release in (before, options.release):
        if not (releases.trees_root() / release / "sglang").is_dir():
            try:
                print(f"{release}: {releases.fetch(release, releases.trees_root())}", flush=True)
            except releases.FetchFailed as why:
                print(f"error: SGLang {release} could not be fetched: {why}", file=sys.stderr)
                return 2
    trees = [find(releases.trees_root() / release) for release in (before, options.release)]
    if trees[0] is None or trees[1] is None:
        print(f"error: no sglang/srt in {releases.trees_root()}", file=sys.stderr)
        return 2
    found = changes(trees[0], trees[1])
    print("\n".join(report(options.release, before, found)))
    return 1 if any(change.lost for change in found) else 0


def _before(release: str) -> str:
    if release in RELEASES:
        return RELEASES[max(RELEASES.index(release) - 1, 0)]
    return NEWEST


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("release", help="such as 0.5.24")
    parser.add_argument(
        "--after", choices=RELEASES, help="compare with this release (default: the one before)"
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())

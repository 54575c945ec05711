#!/usr/bin/env python3
"""How probes stand up to refactorings: every behaviour-keeping edit of the lines that they cite, and what changed.

    python tools/mutation.py                   0.5.15 and 0.5.23, all edits (some minutes)
    python tools/mutation.py 0.5.20 --parts 4  a quarter of the places

Prints one line per release and one per wrong answer. Exit code 1 when there is a wrong answer.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.contract.tables import source
from tests.mutation.suite import Suite


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("release", nargs="*", default=["0.5.15", "0.5.23"])
    parser.add_argument("--parts", type=int, default=1, help="look at every N-th place only")
    options = parser.parse_args(argv)
    wrong = 0
    for release in options.release:
        suite = Suite(source(release))
        result = suite.run(0, options.parts)
        unknown = len(result.changes) - len(result.wrong)
        print(
            f"{release}: {len(suite.answers)} probes, {result.edits} edits, {result.asked} answers:"
            f" {len(result.wrong)} wrong, {unknown} became unknown"
        )
        for change in result.wrong:
            print(f"  {change}")
        wrong += len(result.wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

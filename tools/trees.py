#!/usr/bin/env python3
"""Fetch SGLang releases for the tests: download the wheel, unpack it, import nothing.

    python tools/trees.py 0.5.15 0.5.23      these releases
    python tools/trees.py lsglang==1.6.5     a fork, by the name of its distribution
    python tools/trees.py --ci               the ones that CI runs SGLang of
    python tools/trees.py --plugins          plugins of others that the tests run beside
    python tools/trees.py --all              every release, fork and plugin that the tests know

Each lands in <dest>/<release>/, by default where tests/trees.py looks. Releases that are there already are left
alone. Exit code 1 when a release could not be fetched.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sglang_guards.preflight.releases import FetchFailed, fetch, trees_root
from tests.plugins import PLUGINS, plugins_root
from tests.releases import FORKS, RELEASES, TABLE

#: One release of each shape of SGLang's argument resolution and plugin loading.
CI_RELEASES = (*(release.version for release in TABLE if release.runs), *FORKS)


def main(argv: Sequence[str] | None = None) -> int:
    options = _options(argv)
    releases = (*RELEASES, *FORKS) if options.all else CI_RELEASES if options.ci else tuple(options.release)
    dest: Path = options.dest
    wheels = [(release, "sglang/srt", dest) for release in releases]
    if options.all or options.ci or options.plugins:
        wheels += [(wheel, package, dest / plugins_root().name) for wheel, package in PLUGINS.items()]
    width = max(len(wheel) for wheel, _, _ in wheels)
    failed = 0
    for wheel, holds, folder in wheels:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            said = "present" if (folder / wheel / holds).is_dir() else fetch(wheel, folder, holds)
        except FetchFailed as why:
            said = f"failed: {why}"
            # Tests of a fork or beside a plugin that PyPI has dropped skip, with the reason.
            failed += folder == dest and (wheel not in FORKS or bool(options.release))
        print(f"{wheel:<{width}}  {said}", flush=True)
    return 1 if failed else 0


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("release", nargs="*", type=_release, help="such as 0.5.15; a fork as name==version")
    parser.add_argument(
        "--all",
        action="store_true",
        help=f"all {len(RELEASES)} that the tests know, {', '.join(FORKS)}, and the plugins",
    )
    parser.add_argument("--ci", action="store_true", help=", ".join(CI_RELEASES))
    parser.add_argument("--plugins", action="store_true", help=", ".join(PLUGINS))
    parser.add_argument("--dest", type=Path, default=trees_root(), help="default: %(default)s")
    options = parser.parse_args(argv)
    if bool(options.release) + options.all + options.ci + options.plugins != 1:
        parser.error("name releases, or give --ci, --all or --plugins")
    return options


def _release(text: str) -> str:
    if not re.fullmatch(r"([a-z][a-z0-9_-]*==)?\d+(\.\d+)*((a|b|rc|\.post|\.dev)\d+)*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no release of SGLang")
    return text


if __name__ == "__main__":
    sys.exit(main())

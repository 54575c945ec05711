"""Real SGLang releases for the tests: one unpacked wheel per release, fetched by `tools/trees.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_guards.preflight.releases import trees_root

#: Every release on PyPI from 0.5.9 (no fused-sum flag yet) to the newest that the tests know.
RELEASES: tuple[str, ...] = (
    "0.5.9", "0.5.10", "0.5.10.post1", "0.5.11", "0.5.12", "0.5.12.post1", "0.5.13", "0.5.13.post1", "0.5.14",
    "0.5.15", "0.5.15.post1", "0.5.16", "0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23",
)  # fmt: skip
#: Releases that know `--enable-fused-moe-sum-all-reduce`.
FLAG_RELEASES = RELEASES[1:]


def tree(release: str) -> Path:
    """The folder that holds `sglang/` of `release`; skips the test where it was not fetched."""
    path = trees_root() / release
    if not (path / "sglang").is_dir():
        pytest.skip(
            f"SGLang {release} is not unpacked in {trees_root()}; run: python tools/trees.py {release}"
        )
    return path

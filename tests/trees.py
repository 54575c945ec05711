"""Real SGLang releases for the tests: one unpacked wheel per release, fetched by `tools/trees.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_guards.preflight.releases import trees_root
from tests.releases import FLAG_RELEASES, NEWEST, PLUGIN_RELEASES, REFERENCE, RELEASES, between, running

__all__ = [
    "FLAG_RELEASES", "NEWEST", "PLUGIN_RELEASES", "REFERENCE", "RELEASES", "between", "running", "tree",
]  # fmt: skip


def tree(release: str) -> Path:
    """The folder that holds `sglang/` of `release`; skips the test where it was not fetched."""
    path = trees_root() / release
    if not (path / "sglang").is_dir():
        pytest.skip(
            f"SGLang {release} is not unpacked in {trees_root()}; run: python tools/trees.py {release}"
        )
    return path

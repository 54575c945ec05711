"""The releases of SGLang that the tests know: the one place where a new one is added.

`shape` says what makes a release worth running beside its neighbours; `runs` names the test groups that run it in CI.
Parse-only tests (`tests/contract`) take every release. `SGLANG_GUARDS_MATRIX=all` makes every group run every release.
"""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Release:
    """One release on PyPI."""

    version: str
    shape: str = ""
    runs: frozenset[str] = frozenset()


def _release(version: str, shape: str = "", runs: str = "") -> Release:
    return Release(version, shape, frozenset(runs.split()))


TABLE: tuple[Release, ...] = (
    _release("0.5.9", "no fused-sum flag yet; wants another transformers major"),
    _release("0.5.10", "the flag appears; no plugin framework", "seed hotfix"),
    _release("0.5.10.post1", "the last one without a plugin framework", "legacy fuzz series"),
    _release(
        "0.5.11",
        "plugins; kernels move to moe_runner",
        "hook auto differential launchers hotfix edited overhead",
    ),
    _release("0.5.12", "deterministic mode switches the fusion off", "auto corpus"),
    _release("0.5.12.post1"),
    _release("0.5.13"),
    _release("0.5.13.post1", "the last one with the boolean fusion switch", "hook"),
    _release("0.5.14", "the fusion takes a backend; CUDA-graph sizes per phase", "auto"),
    _release(
        "0.5.15",
        "the fusion's switch is a pass of its own; the patches' reference",
        "hook auto differential corpus seed launchers hotfix fuzz series edited patched overhead mutation",
    ),
    _release("0.5.15.post1"),
    _release("0.5.16", "kernels move to kernels/ops", "hotfix"),
    _release("0.5.17"),
    _release("0.5.18", "the last one whose record is its resolution", "hook auto differential edited"),
    _release("0.5.19", "resolution behind a view", "hook auto"),
    _release("0.5.20", "server args are a msgspec Struct", "hook auto differential"),
    _release("0.5.21", "the communicator folds into layer boundaries"),
    _release("0.5.22", "attention DP has its own size", "edited"),
    _release(
        "0.5.23",
        "the zero store is guarded; top-k asks for expert locations",
        "hook auto differential corpus seed launchers hotfix fuzz series patched overhead mutation",
    ),
)

#: Forks with a distribution of their own, one dated wheel each (`tests/live/test_forks.py`).
FORKS = ("lsglang==1.6.5",)

#: Every version, oldest first.
RELEASES: tuple[str, ...] = tuple(release.version for release in TABLE)
#: Those that know `--enable-fused-moe-sum-all-reduce`.
FLAG_RELEASES = RELEASES[1:]
#: Those with a plugin framework.
PLUGIN_RELEASES = RELEASES[RELEASES.index("0.5.11") :]
NEWEST = RELEASES[-1]
#: The one that single-release tests, examples and the patches' worked example take.
REFERENCE = "0.5.15"


def running(group: str, among: tuple[str, ...] = RELEASES) -> tuple[str, ...]:
    """The releases that a test group runs: those that name it, or all of `among` in the full matrix.

    Raises KeyError for a group that no release names, so that a misspelt one does not run nothing.
    """
    named = tuple(release.version for release in TABLE if group in release.runs)
    if not named:
        raise KeyError(f"no release in tests/releases.py runs {group!r}")
    return among if os.environ.get("SGLANG_GUARDS_MATRIX") == "all" else named


def between(since: str | None, until: str | None) -> tuple[str, ...]:
    """Releases from `since` to `until`, both included; None is the oldest or the newest."""
    start = RELEASES.index(since) if since else 0
    return RELEASES[start : (RELEASES.index(until) + 1 if until else None)]

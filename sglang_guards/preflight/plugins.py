"""Other SGLang plugins of this environment: named when they are left out, and loaded as SGLang would on request.

A plugin may change anything, so that a check without it judges SGLang alone. It is code of others, so that it runs
only when asked for (``check --plugins``). Ours is never loaded in a check: it would validate while it is validated.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_guards.errors import CouldNotCheck

#: Tells the worker, which cannot be told otherwise before it imports SGLang.
VARIABLE = "SGLANG_GUARDS_LOAD_PLUGINS"
GROUPS = ("sglang.srt.plugins", "sglang.srt.platforms")
_OURS = "sglang_guards"


@dataclass(frozen=True)
class Plugin:
    """One entry point of another distribution."""

    name: str
    package: str
    distribution: str
    version: str

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}".strip()


def installed(root: Path, env: Mapping[str, str]) -> tuple[Plugin, ...]:
    """Plugins that this SGLang (its package folder) would load; none where it has no plugin framework."""
    if not (root / "srt" / "plugins").is_dir():
        return ()
    allowed = {name.strip() for name in env.get("SGLANG_PLUGINS", "").split(",") if name.strip()}
    found = []
    for group in GROUPS:
        for entry in importlib.metadata.entry_points(group=group):
            if _is_foreign(entry) and (not allowed or entry.name in allowed):
                dist = entry.dist
                name, version = (dist.name, dist.version) if dist is not None else (entry.name, "")
                found.append(Plugin(entry.name, _package(entry), name, version))
    return tuple(dict.fromkeys(found))


def _package(entry: Any) -> str:
    return str(entry.value).partition(":")[0].partition(".")[0]


def _is_foreign(entry: Any) -> bool:
    return _package(entry) not in ("sglang", _OURS)


def note(found: Iterable[Plugin], loaded: bool) -> list[str]:
    """One line of the report, where there are plugins."""
    names = ", ".join(dict.fromkeys(map(str, found)))
    if not names:
        return []
    if loaded:
        return [f"loaded as SGLang would: {names}"]
    return [f"other SGLang plugins are installed here and were not loaded: {names}; --plugins loads them"]


def prevented(found: Iterable[Plugin], reason: str) -> CouldNotCheck:
    """What is said where SGLang refuses without the installed plugins and does not with them."""
    names = ", ".join(dict.fromkeys(map(str, found)))
    return CouldNotCheck(
        f"SGLang alone refuses this launch and does not with the plugins that are installed here ({names}): {reason}",
        "run check with --plugins to judge the launch with them",
    )


def wanted() -> bool:
    """Whether this worker loads them."""
    return bool(os.environ.get(VARIABLE))


def leave_out() -> None:
    """Hide plugins from SGLang, before it is imported: ours always, others unless they are wanted."""
    original = importlib.metadata.entry_points
    foreign = wanted()

    def entry_points(**params: Any) -> Any:
        found = original(**params)
        if params.get("group") not in GROUPS:
            return found
        kept: list[Any] = [e for e in found if _package(e) == "sglang" or (foreign and _is_foreign(e))]
        return importlib.metadata.EntryPoints(kept)

    importlib.metadata.entry_points = entry_points


def load() -> tuple[str, ...]:
    """Load them as SGLang's launcher does before it parses; the packages that were loaded."""
    if not wanted():
        return ()
    try:
        from sglang.srt.plugins import load_plugins
    except ImportError:  # before 0.5.11
        return ()
    load_plugins()
    entries = [e for group in GROUPS for e in importlib.metadata.entry_points(group=group)]
    return tuple(dict.fromkeys(_package(e) for e in entries if _is_foreign(e)))

"""Real public launches (corpus/*.toml): known to work, or publicly reported to go wrong, and on which release to judge.

A good launch names the releases whose parser and model list accept it: from `since` to `until` (open: the newest), but
`except`. A bad one names the `release` on which it is
judged, the rules that must catch it (`catches`), releases on which they must be quiet (`quiet_on`), or why it is out
of reach; `build` where only the built model shows it. `{models}` in a command is the folder of the model configs.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from tests.launches.checks import MODELS, check_all
from tests.releases import between
from tools.toml import tomllib

HERE = Path(__file__).parent


def _read(path: Path) -> dict[str, Any]:
    case = tomllib.loads(path.read_text(encoding="utf-8"))
    if case["kind"] == "good":
        span = between(case["since"], case.get("until"))
        case["releases"] = [release for release in span if release not in case.get("except", ())]
    return case


CORPUS: dict[str, dict[str, Any]] = {path.stem: _read(path) for path in sorted(HERE.glob("corpus/*.toml"))}
GOOD = {name: case for name, case in CORPUS.items() if case["kind"] == "good"}
BAD = {name: case for name, case in CORPUS.items() if case["kind"] == "bad"}


def releases_of(name: str) -> set[str]:
    """Releases on which CI judges a bad case."""
    case = CORPUS[name]
    return {case["release"], *case.get("quiet_on", ())}


@cache
def reports(release: str, names: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Reports of these cases on one release, made in one process; equal environments follow each other."""
    order = sorted(names, key=lambda name: (sorted(CORPUS[name].get("env", {}).items()), CORPUS[name]["gpu"]))
    launches = [
        {**CORPUS[name], "argv": [word.replace("{models}", str(MODELS)) for word in CORPUS[name]["argv"]]}
        for name in order
    ]
    return dict(zip(order, check_all(release, launches, timeout=3000), strict=True))


def refused(report: dict[str, Any]) -> bool:
    """Whether this SGLang, on this simulated machine, does not take the launch at all."""
    return "error" in report or any(f["id"] == "SGL001" for f in report["findings"])


def told(report: dict[str, Any], *severities: str) -> set[str]:
    """Ids of the findings of these severities."""
    return {f["id"] for f in report.get("findings", ()) if f["severity"] in severities}

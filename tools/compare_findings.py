"""Whether two versions of sglang-guards say the same about the same launches.

    python tools/compare_findings.py collect RELEASE OUT.json [--cases FOLDER]     judge the corpus and the commands
    python tools/compare_findings.py BEFORE.json AFTER.json [--ids LNC106=RUN109]  list what differs

`collect` runs in the checkout that it belongs to, one process, no model is built. `--cases` takes the launches from the
`tests/launches` folder of another checkout, so that both sides judge the same ones. A file maps each launch to its
findings, [id, severity] in order, or to the error that kept it from being judged. The comparison exits 1 where a
finding is gone or has another severity; findings that are new are listed and do not fail.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tools.toml import tomllib  # noqa: E402

#: Launch -> its findings, or the reason why it was not judged.
Findings = Mapping[str, list[list[str]] | str | None]


def collect(release: str, folder: Path) -> dict[str, Any]:
    """The findings of every launch of the corpus and of every case that is a command, on one release."""
    from tests.launches.checks import MODELS, check_all

    launches = _corpus(folder / "corpus", MODELS) | _commands(ROOT / "tests" / "rules" / "cases")
    order = sorted(launches, key=lambda name: (sorted(launches[name].get("env", {})), launches[name]["gpu"]))
    reports = check_all(release, [launches[name] for name in order], timeout=3000)
    return {name: _findings(report) for name, report in zip(order, reports, strict=True)}


def _corpus(folder: Path, models: Path) -> dict[str, Any]:
    read = {
        path.stem: tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.toml"))
    }
    return {
        name: {**case, "argv": [word.replace("{models}", str(models)) for word in case["argv"]]}
        for name, case in read.items()
    }


def _commands(folder: Path) -> dict[str, Any]:
    found = {}
    for path in sorted(folder.glob("*.toml")):
        read = tomllib.loads(path.read_text(encoding="utf-8"))
        for kind in ("fires", "quiet"):
            for case in (one for one in read.get(kind, ()) if "argv" in one):
                name = f"{path.stem.lower()}-{'quiet-' if kind == 'quiet' else ''}{case['name']}"
                start = ["python", "-m", "sglang.launch_server", "--model-path", f"example/{case['model']}"]
                found[name] = {**case, "argv": [*start, *case["argv"]]}
    return found


def _findings(report: Mapping[str, Any]) -> list[list[str]] | str:
    if "error" in report:
        return str(report["error"]["message"])
    return sorted([f["id"], f["severity"]] for f in report["findings"])


def differences(
    before: Findings, after: Findings, ids: Mapping[str, str]
) -> tuple[list[str], list[str], int]:
    """What is gone or of another severity, what is new, and how many launches were compared."""
    gone, new, compared = [], [], 0
    for name in sorted(before.keys() & after.keys()):
        old, now = before[name], after[name]
        if not isinstance(old, list) or not isinstance(now, list):
            if isinstance(old, list):
                gone.append(f"{name}: no longer judged: {now}")
            elif isinstance(now, list):
                new.append(f"{name}: judged now; before: {old}")
            continue
        compared += 1
        was = {(ids.get(rule, rule), severity) for rule, severity in old}
        says = {(rule, severity) for rule, severity in now}
        gone += [f"{name}: {rule} {severity}" for rule, severity in sorted(was - says)]
        new += [f"{name}: {rule} {severity}" for rule, severity in sorted(says - was)]
    return gone, new, compared


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("first", metavar="BEFORE|collect")
    parser.add_argument("second", metavar="AFTER|RELEASE")
    parser.add_argument("out", nargs="?", type=Path, help="with collect: the file to write")
    parser.add_argument("--cases", type=Path, default=ROOT / "tests" / "launches", help="with collect")
    parser.add_argument(
        "--ids", action="append", default=[], metavar="OLD=NEW", help="a rule that got another id"
    )
    options = parser.parse_args(argv)
    if options.first == "collect":
        if options.out is None:
            parser.error("collect needs RELEASE and OUT.json")
        options.out.write_text(json.dumps(collect(options.second, options.cases), indent=1), encoding="utf-8")
        return 0
    before, after = (json.loads(Path(p).read_text(encoding="utf-8")) for p in (options.first, options.second))
    ids = dict(pair.split("=", 1) for pair in options.ids)
    gone, new, compared = differences(before, after, ids)
    print(f"{compared} launches compared; {len(gone)} findings gone or changed, {len(new)} new")
    for title, lines in (("gone", gone), ("new", new)):
        print(
            *([f"{title}:", *(f"  {line}" for line in lines)] if lines else []),
            sep="\n",
            end="\n" if lines else "",
        )
    return 1 if gone else 0


if __name__ == "__main__":
    sys.exit(main())

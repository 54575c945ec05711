"""``check --all-releases``: in which SGLang releases is this launch safe?

Every release is judged by its own resolution, in a process of its own that finds that release first. Releases that
are not unpacked here are fetched with pip where it can reach an index; one that cannot be judged is unknown, with the
reason.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import Version

from sglang_guards import __version__, redact
from sglang_guards.errors import CouldNotCheck, NotAccepted
from sglang_guards.launch import gpus, model_files
from sglang_guards.preflight import command_line, releases
from sglang_guards.report import text
from sglang_guards.report.model import SCHEMA_VERSION, Severity

#: Seconds for one release: SGLang's import on a slow disk, then up to a dozen resolutions.
_TIMEOUT_S = 900
#: Each judging process holds about a GiB.
_MOST_AT_ONCE = 4
_START = (
    "import sys; sys.path[:] = sys.argv[1].split(chr(0x1f)); "
    "from sglang_guards.preflight.all_releases import judge_here; judge_here()"
)


@dataclass(frozen=True)
class Row:
    """One release. `verdict` is pass, fail or unknown; `safe` is None where it is unknown.

    `findings` are (id, severity), worst first; `why` is the worst finding, or why there is no verdict.
    """

    release: str
    verdict: str
    safe: bool | None
    findings: tuple[tuple[str, str], ...] = ()
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        found = [{"id": rule_id, "severity": severity} for rule_id, severity in self.findings]
        return {**vars(self), "findings": found}


def run(launch: Sequence[str], args: argparse.Namespace) -> int:
    """Print the table. 0 when at least one release is safe, 1 when none is, 2 when none could be judged."""
    if args.format not in ("text", "json"):
        raise CouldNotCheck(f"--all-releases has no --format {args.format}", "use text or json")
    request = _request(launch, args.gpu, args.model_config, build=not args.no_build)
    trees, missing, notes = _trees()
    rows = [*judge_all(trees, request, args.fail_on, strict=args.strict), *missing]
    rows.sort(key=lambda row: Version(row.release))
    shown = redact.words(command_line.parse(launch).argv, redact.secrets_in(launch, _secret_env()))
    if args.format == "json":
        print(json.dumps(_to_dict(rows, notes, shown), indent=2, ensure_ascii=False))
    else:
        to = text.console()
        to.print(f"sglang-guards {__version__} · {len(rows)} releases of SGLang\n", soft_wrap=True)
        cells = (
            (r.release, r.verdict.upper(), " ".join(i for i, _ in r.findings) or "–", r.why) for r in rows
        )
        text.table_of(cells, ("release", "verdict", "findings", "why"), to)
        for note in notes:
            to.print(f"\nnote     {note}", soft_wrap=True)
        to.print(f"\n{verdict_line(rows)}", style="bold", soft_wrap=True)
    judged = [row.safe for row in rows if row.safe is not None]
    if not judged:
        return 2
    return 0 if any(judged) or args.fail_on == "never" else 1


def _request(
    launch: Sequence[str], gpu: str, model_config: str | None, *, build: bool = True
) -> dict[str, Any]:
    """What every process is asked. Mistakes that no release could forgive are raised here, once."""
    command_line.parse(launch)
    if gpu == "auto":
        gpus.detect()
    else:
        gpus.parse(gpu)
    if model_config is not None:
        model_files.read(Path(model_config).expanduser())
    return {"argv": list(launch), "gpu": gpu, "model_config": model_config, "build": build}


def _trees() -> tuple[dict[str, Path], list[Row], list[str]]:
    """Release -> folder; rows of releases that could not be fetched; notes."""
    root = releases.trees_root()
    trees = releases.unpacked(root)
    try:
        wanted = [release for release in releases.published() if release not in trees]
    except releases.FetchFailed as why:
        if not trees:
            raise CouldNotCheck(
                f"no SGLang release is unpacked in {root}, and pip reaches no package index: {why}",
                "run it once with network access, or name the folder in SGLANG_GUARDS_TREES",
            ) from None
        return trees, [], [f"pip reaches no package index ({why}); only what is in {root} was judged"]
    missing = []
    for number, release in enumerate(wanted, 1):
        _say(f"fetching SGLang {release} ({number} of {len(wanted)})")
        try:
            root.mkdir(parents=True, exist_ok=True)
            releases.fetch(release, root)
            trees[release] = root / release
        except (releases.FetchFailed, OSError) as why:
            missing.append(Row(release, "unknown", None, why=f"could not be fetched: {why}"))
    return trees, missing, []


def judge_all(
    trees: Mapping[str, Path], request: Mapping[str, Any], fail_on: str = "error", *, strict: bool = False
) -> Iterator[Row]:
    """One row for each release, in order; a few are judged at a time."""
    at_once = max(1, min(_MOST_AT_ONCE, (os.cpu_count() or 2) // 2))

    def one(release: str) -> Row:
        return _row(release, _ask(trees[release], request), fail_on, strict)

    with ThreadPoolExecutor(at_once) as pool:
        for number, row in enumerate(pool.map(one, trees), 1):
            _say(f"judged SGLang {row.release} ({number} of {len(trees)})")
            yield row
    _say("")


def _ask(tree: Path, request: Mapping[str, Any]) -> dict[str, Any]:
    path = [str(tree), *(entry or os.getcwd() for entry in sys.path)]
    try:
        done = subprocess.run(
            [sys.executable, "-c", _START, chr(0x1F).join(path)],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
        return dict(json.loads(done.stdout))
    except subprocess.TimeoutExpired:
        return {"unknown": f"it did not answer within {_TIMEOUT_S} s"}
    except ValueError:
        last = (done.stderr.strip().splitlines() or [f"it ended with exit code {done.returncode}"])[-1]
        return {"unknown": redact.text(last, redact.secrets_in(request["argv"], _secret_env()))}


def judge_here() -> None:
    """The other end of `_ask`: check what stdin asks on the SGLang found first, answer on stdout."""
    from sglang_guards.preflight import launch_check

    out = os.dup(1)
    os.dup2(2, 1)  # nothing else may get between
    request = json.load(sys.stdin)
    secrets = redact.secrets_in(request["argv"], _secret_env())
    answer: dict[str, Any]
    try:
        answer = launch_check.check(**request, fixed_release=True).to_dict()
    except NotAccepted as error:
        answer = {"refused": redact.text(error.message, secrets)}
    except CouldNotCheck as error:
        answer = {"unknown": redact.text(error.message, secrets)}
    except Exception as error:  # noqa: BLE001 - one release's row must not cost the others
        answer = {"unknown": redact.text(f"internal error: {type(error).__name__}: {error}", secrets)}
    with open(out, "w", encoding="utf-8") as file:
        json.dump(answer, file)


def _row(release: str, answer: Mapping[str, Any], fail_on: str, strict: bool) -> Row:
    if "refused" in answer:
        return Row(release, "fail", False, why=answer["refused"])
    if "unknown" in answer:
        return Row(release, "unknown", None, why=answer["unknown"])
    found = tuple((f["id"], f["severity"]) for f in answer["findings"])
    why = answer["findings"][0]["message"] if found else ""
    if answer["verdict"] == "unknown":
        return Row(release, "unknown", None, found, why or "no rule could be decided")
    limit = Severity("error" if fail_on in ("never", "unknown") else fail_on)
    stops = any(Severity(severity).rank <= limit.rank for _, severity in found)
    undecided = (strict or fail_on == "unknown") and bool(answer["skipped"] or answer.get("unknown"))
    return Row(release, answer["verdict"], not (stops or undecided), found, why)


def _brief(why: str) -> str:
    """One line of the table; the JSON has the whole text."""
    return textwrap.shorten(why, 110, placeholder=" …")


def verdict_line(rows: Sequence[Row]) -> str:
    """``SAFE in 0.5.20 to 0.5.23 · not safe in 0.5.9 to 0.5.19``."""
    parts = [
        ("SAFE in", True, "SAFE in no release that could be judged"),
        ("not safe in", False, ""),
        ("unknown for", None, ""),
    ]
    said = []
    for label, safe, otherwise in parts:
        spans = ", ".join(_spans(rows, safe))
        if spans or otherwise:
            said.append(f"{label} {spans}" if spans else otherwise)
    return " · ".join(said)


def _spans(rows: Sequence[Row], safe: bool | None) -> Iterator[str]:
    """Neighbours in the table that agree, as ``first to last``."""
    run: list[str] = []
    for row in (*rows, None):
        if row is not None and row.safe is safe:
            run.append(row.release)
        elif run:
            yield run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}"
            run = []


def _to_dict(rows: Sequence[Row], notes: Sequence[str], argv: Sequence[str]) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "tool": {"name": "sglang-guards", "version": __version__},
        "launch": {"argv": list(argv)},
        "safe": [row.release for row in rows if row.safe],
        "releases": [row.to_dict() for row in rows],
        "notes": list(notes),
    }


def _secret_env() -> dict[str, str]:
    return redact.env_secrets(os.environ)


def _say(line: str) -> None:
    """Progress on stderr: on one line at a terminal, else a line each."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{line}\r", end="", file=sys.stderr, flush=True)
    elif line:
        print(line, file=sys.stderr, flush=True)

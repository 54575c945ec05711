"""The figures of docs/evidence.md, from the tests and the benchmark that print them.

    python tools/evidence.py [faults] [fuzz] [corpus] [builds] [alone] [build-cost] [killed] [input] [overhead]

runs each (all of them by default), keeps what it printed in docs/data/evidence.json, and leaves the figures of the
others alone. A run that fails changes nothing. `tools/docs.py` makes the page.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "docs" / "data" / "evidence.json"
_CASES = "tests/live/test_faults.py"
_OVERHEAD = ("0.5.11", "0.5.15", "0.5.23")


def _pytest(*args: str) -> list[str]:
    return ["-m", "pytest", "-s", "-q", "-m", "not slow and not gpu", "-p", "no:cacheprovider", *args]


@dataclass(frozen=True)
class Run:
    """One command and how its figures are read and shown. `words` is given to the interpreter."""

    title: str
    about: str
    words: Sequence[str]
    read: Callable[[str], list[list[Any]]]
    head: Sequence[str]
    #: The sentence above the table, from its rows.
    sum_up: Callable[[Sequence[Sequence[Any]]], str]
    env: Mapping[str, str] = field(default_factory=dict)


def _faults(text: str) -> list[list[Any]]:
    return [[v, int(n)] for v, n in re.findall(r"SGLang (\S+): (\d+) faults survived", text)]


def _fuzz(text: str) -> list[list[Any]]:
    rows: list[list[Any]] = []
    for release, ends in re.findall(r"SGLang (\S+): (\{.*\})", text):
        counts = ast.literal_eval(ends)
        exits = [counts.get(f"exit {code}", 0) for code in (0, 1, 2)]
        rows.append([release, sum(exits), *exits, counts.get("corrected", 0)])
    return rows


def _input(text: str) -> list[list[Any]]:
    counts: dict[str, int] = {}
    for what, number in re.findall(
        r"^\.*(bash|dash|wrappers|compose|kubernetes|odd files|secrets): (\d+) ", text, re.MULTILINE
    ):
        counts[what] = counts.get(what, 0) + int(number)
    return [[_INPUT[what], number] for what, number in counts.items()]


_INPUT = {
    "bash": "texts whose words are those of bash",
    "dash": "texts whose words are those of dash",
    "wrappers": "launches behind wrappers and in texts, read word for word",
    "compose": "compose files, read word for word",
    "kubernetes": "Kubernetes files, read word for word",
    "odd files": "damaged scripts and YAML, each one sentence or a launch",
    "secrets": "places of a secret × outputs, none told",
}


def _corpus(text: str) -> list[list[Any]]:
    rows: list[list[Any]] = [
        [f"work, on SGLang {v}", int(n), 0, f"{skipped} not taken by this SGLang itself"]
        for v, n, skipped in re.findall(r"SGLang (\S+): (\d+) working launches judged, (\d+) not", text)
    ]
    by_family: dict[str, list[int]] = {}
    for family, caught, of in re.findall(r"(\w+) on \S+: (\d+) of (\d+) reported launches caught", text):
        sums = by_family.setdefault(family, [0, 0])
        sums[0] += int(of)
        sums[1] += int(caught)
    return rows + [
        [f"reported to go wrong, {family}", *sums, ""] for family, sums in sorted(by_family.items())
    ]


def _overhead(text: str) -> list[list[Any]]:
    rows: list[list[Any]] = []
    for release, cells in re.findall(r"^(\d\S+)\s+(\{.*\})", text, re.MULTILINE):
        found = ast.literal_eval(cells)
        rows.append([release, found["launcher"], found["worker"]])
    return rows


def _killed(text: str) -> list[list[Any]]:
    found = r"^(\w+, \w+): (\d+) points, (\d+) before anything was changed, (\d+) after$"
    return [[what, *map(int, counts)] for what, *counts in re.findall(found, text, re.MULTILINE)]


def _mutation(text: str) -> list[list[Any]]:
    found = r"^(\S+): (\d+) probes, (\d+) edits, (\d+) answers: (\d+) wrong, (\d+) became unknown$"
    return [[release, *map(int, counts)] for release, *counts in re.findall(found, text, re.MULTILINE)]


def _corpus_text(rows: Sequence[Sequence[Any]]) -> str:
    good = sum(row[1] for row in rows if row[0].startswith("work"))
    bad = [row for row in rows if row[0].startswith("reported to")]
    return (
        f"{good} judgements of launches that work, no error said; {sum(r[2] for r in bad)} of "
        f"{sum(r[1] for r in bad)} reported launches caught."
    )


def _builds(text: str) -> list[list[Any]]:
    found = (
        r"SGLang (\S+): (\d+) of (\d+) launches built, (\d+) refused, (\d+) false errors; "
        r"the table: (\d+) answers compared, (\d+) differ"
    )
    return [[release, *map(int, counts)] for release, *counts in re.findall(found, text)]


def _builds_text(rows: Sequence[Sequence[Any]]) -> str:
    built, taken, wrong, compared, differ = (sum(row[at] for row in rows) for at in (1, 2, 4, 5, 6))
    return (
        f"{built} of {taken} launches that work were built, {wrong} of them refused by mistake; {differ} of {compared} "
        "answers of the hand-written table differ from the build."
    )


def _alone(text: str) -> list[list[Any]]:
    found = re.findall(r"(\w+): (\d+) of (\d+) reported launches refused by the build alone", text)
    return [[rule, int(of), int(caught)] for rule, caught, of in found]


def _most(rows: Sequence[Sequence[Any]], column: int) -> str:
    """The largest cell of a column of texts that begin with a number."""
    return str(max((row[column] for row in rows), key=lambda cell: float(cell.split()[0])))


def _build_cost(text: str) -> list[list[Any]]:
    rows: list[list[Any]] = []
    for release, cells in re.findall(r"^(\d\S+) (\{.*\})", text, re.MULTILINE):
        found = ast.literal_eval(cells)
        names = ("first_wall", "first_cpu", "further_wall", "further_cpu")
        seconds = [f"{found[name]:.2f} s" for name in names]
        rows.append([release, *seconds, *(f"{found[n]:.0f} MiB" for n in ("plain_mib", "build_mib"))])
    return rows


#: Rules whose faults SGLang's constructors may refuse themselves.
_ALONE = ("QNT101", "RUN", "BLD", "ATT", "PAR112")

RUNS: Mapping[str, Run] = {
    "faults": Run(
        "Faults survived",
        "Generated faults: an attribute missing or of another type, a damaged config, an unreadable source, an "
        "exception in a rule or a handler. Each must leave a launch that SGLang accepts as it was, and a line that "
        "says so.",
        _pytest(_CASES),
        _faults,
        ("SGLang", "faults survived"),
        lambda rows: f"{sum(row[1] for row in rows):,} faults, none stopped or changed a launch.",
        {"SGLANG_GUARDS_MATRIX": "all"},
    ),
    "fuzz": Run(
        "Launches fuzzed",
        "Random flags, values, GPUs and models: never a traceback, exit code 0, 1 or 2, the same report twice, JSON "
        "valid against the schema, and every corrected command free of errors.",
        _pytest("tests/live/test_fuzz.py"),
        _fuzz,
        ("SGLang", "launches", "exit 0", "exit 1", "exit 2", "corrected commands checked"),
        lambda rows: f"{sum(row[1] for row in rows):,} launches, no breach.",
    ),
    "corpus": Run(
        "Public launches judged",
        "Launch commands from public places. Those that are known to work must raise no error; those that were "
        "reported to go wrong should be caught by a rule on the release of the report.",
        [
            *("-m", "pytest", "-s", "-q", "-p", "no:cacheprovider", "tests/launches/test_corpus.py"),
            *("-k", "harm or caught"),
        ],
        _corpus,
        ("launches that", "judged", "caught", ""),
        _corpus_text,
        {"SGLANG_GUARDS_MATRIX": "all"},
    ),
    "builds": Run(
        "Launches built",
        "The launches that work, as `check` builds them on releases that accept them: SGLang's own constructors must "
        "refuse none, and the runner and method of their MoE layers must be those of the table in `launch/`, which "
        "stays for the start-up hook. What is not built says why.",
        ["tools/build_corpus.py", "--releases", "0.5.15", "0.5.17", "0.5.19", "0.5.21", "0.5.22", "0.5.23"],
        _builds,
        ("SGLang", "built", "of", "refused", "by mistake", "answers compared", "differ"),
        _builds_text,
    ),
    "alone": Run(
        "Caught by the build alone",
        "Launches that were reported to go wrong, by the rule that claims them, and how many of them SGLang's own "
        "constructors refuse with all rules switched off. A fault of the forward pass is no fault of construction: "
        "what PAR112, ATT104 and most of RUN tell happens at the first batch, and a rule has to know it.",
        [
            "tools/build_corpus.py",
            "--kind",
            "bad",
            "--catches",
            *_ALONE,
            "--releases",
            "0.5.10",
            "0.5.12",
            "0.5.13",
            "0.5.15",
            "0.5.16",
            "0.5.17",
            "0.5.18",
            "0.5.19",
        ],
        _alone,
        ("rule", "launches", "refused by the build"),
        lambda rows: f"{sum(row[2] for row in rows)} of {sum(row[1] for row in rows)} reported launches.",
    ),
    "build-cost": Run(
        "What the build costs",
        "Seconds that the build adds to `check`, for the first launch of a process and each further one, as waited "
        "for and as CPU time of all processes; and the memory of `check` with all that it starts, shared pages "
        "counted once.",
        ["tools/build_cost.py"],
        _build_cost,
        ("SGLang", "first", "CPU", "each further", "CPU", "memory without", "memory with"),
        lambda rows: (
            f"the first launch takes up to {_most(rows, 1)} more, each further one {_most(rows, 3)}; "
            f"at most {_most(rows, 6)}."
        ),
    ),
    "mutation": Run(
        "Probes on a refactored source",
        "Every line that a probe cites is renamed, moved, wrapped, reformatted, turned into match or extracted, so "
        "that SGLang behaves as before; then the probes that read the file are asked again. An answer may become "
        "unknown, and may not become another one.",
        ["tools/mutation.py"],
        _mutation,
        ("SGLang", "probes", "edits", "answers", "wrong", "became unknown"),
        lambda rows: (
            f"{sum(row[2] for row in rows):,} edits, {sum(row[3] for row in rows):,} answers, "
            f"{sum(row[4] for row in rows)} wrong."
        ),
    ),
    "killed": Run(
        "The patch tool killed",
        "`tools/patches.py` gets SIGKILL at every operation that changes something (writes also half done). A second "
        "run must then finish the series, another one take it back byte for byte, and neither may say that nothing "
        "was changed where something was.",
        _pytest("tests/patches/test_killed.py"),
        _killed,
        ("tree, command", "killed at", "before anything was changed", "after"),
        lambda rows: (
            f"{sum(row[1] for row in rows)} points, each finished by `apply` and taken back by `--reverse`."
        ),
    ),
    "input": Run(
        "Commands and files read",
        "Generated shell texts against the real shells' own words; launches behind chains of wrappers, in texts, "
        "compose and Kubernetes files; damaged files; secrets in every place of a command, looked for in every output.",
        _pytest(
            "tests/unit/test_shell.py",
            "tests/unit/test_launch_fuzz.py",
            "tests/unit/test_redact_generated.py",
        ),
        _input,
        ("generated", "number"),
        lambda rows: f"{sum(row[1] for row in rows):,} cases, no breach.",
    ),
    "overhead": Run(
        "What the hook costs at start-up",
        "Medians over fresh processes of real SGLang. Launcher: what the plugin adds to SGLang's load_plugins(), and "
        "the first validation of a launch. Worker: what the plugin adds to the same. A request pays nothing.",
        ["benchmarks/bench_overhead.py", *_OVERHEAD, "--repeat", "3"],
        _overhead,
        ("SGLang", "launcher", "each worker"),
        lambda _: "SGLang's own start takes seconds.",
    ),
}


def measure(name: str) -> dict[str, Any]:
    """Run one and read its figures; raises RuntimeError where it fails or prints none."""
    run = RUNS[name]
    env = {k: v for k, v in os.environ.items() if not k.startswith("SGLANG_GUARDS")}
    env |= {k: v for k, v in os.environ.items() if k == "SGLANG_GUARDS_TREES"}
    env |= run.env
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, *run.words],
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    rows = run.read(done.stdout)
    if done.returncode != 0 or not rows:
        raise RuntimeError(f"{name}: exit code {done.returncode}, {len(rows)} figures\n{done.stdout[-3000:]}")
    head = subprocess.run(
        ["git", "rev-parse", "--short=10", "HEAD"], cwd=ROOT, capture_output=True, text=True
    )
    return {
        "command": "".join(f"{k}={v} " for k, v in run.env.items())
        + "python "
        + " ".join(f'"{w}"' if " " in w else w for w in run.words),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "commit": head.stdout.strip() or "unknown",
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, no GPU",
        "load": round(os.getloadavg()[0], 1),
        "seconds": round(time.monotonic() - began),
        "rows": rows,
    }


def page(data: Mapping[str, Mapping[str, Any]]) -> str:
    """docs/evidence.md."""
    out = ["# Evidence", "", "Figures that the project's own tests print, each with its command.", ""]
    for name, run in RUNS.items():
        out += [f"## {run.title}", "", run.about, ""]
        found = data.get(name)
        if found is None:
            out += [f"Not run yet: `python tools/evidence.py {name}`.", ""]
            continue
        out += [f"**{run.sum_up(found['rows'])}**", ""]
        out += ["| " + " | ".join(run.head) + " |", "|---|" + "--:|" * (len(run.head) - 1)]
        out += ["| " + " | ".join(f"{cell:,}" if isinstance(cell, int) else cell for cell in row) + " |"
                for row in found["rows"]]  # fmt: skip
        out += [
            "",
            f"`{found['command']}` · {found['date']}, commit {found['commit']}, {found['machine']}, "
            f"load {found['load']}, {found['seconds']} s",
            "",
        ]
    out += [
        "## Elsewhere",
        "",
        "- Kernels, servers and end-to-end runs on GPUs: [Results](results.md).",
        "- Which release has which defect: [Releases](releases.md), held by `pytest tests/contract`.",
        "",
        "Made by `python tools/docs.py` from `docs/data/evidence.json`, which `python tools/evidence.py` writes.",
        "",
    ]
    return "\n".join(out)


def load() -> dict[str, Any]:
    """What was measured; empty before the first run."""
    if not DATA.is_file():
        return {}
    data: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8"))
    return data


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", nargs="*", choices=[[], *RUNS], help="which; all of them by default")
    names = parser.parse_args().run or list(RUNS)
    failed = 0
    for name in names:
        print(f"{name} …", flush=True)
        try:
            found = measure(name)
        except RuntimeError as error:
            print(error, file=sys.stderr)
            failed = 1
            continue
        data = load() | {name: found}
        DATA.parent.mkdir(parents=True, exist_ok=True)
        DATA.write_text(
            json.dumps({k: data[k] for k in RUNS if k in data}, indent=1) + "\n", encoding="utf-8"
        )
        print(f"  {RUNS[name].sum_up(found['rows'])} ({found['seconds']} s)")
    print("now run: python tools/docs.py")
    return failed


if __name__ == "__main__":
    sys.exit(main())

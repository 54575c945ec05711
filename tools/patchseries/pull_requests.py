"""patches/upstream-pr/: each pull request applies, its tests pass, its letter and its format are in order."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from tools.patchseries import gitobjects, trees
from tools.patchseries.check import Options, Outcome, must_compile, tests_pass
from tools.patchseries.gitobjects import GitError
from tools.patchseries.manifest import PATCHES, TESTS, Series, read_patch

FOLDER = PATCHES / "upstream-pr"
RELEASE = "0.5.23"
SECTIONS = (
    "## Motivation",
    "## Modifications",
    "## Accuracy Tests",
    "## Speed Tests and Profiling",
    "## Checklist",
    "## Review and Merge Process",
)
#: SGLang's pre-commit set: its versions, and how each is run on a file.
VERSIONS = {"ruff": "0.15.1", "isort": "5.13.2", "codespell": "2.4.1"}
FORMATTERS = (
    ("ruff", "format", "--isolated", "--no-cache", "--check"),
    ("ruff", "check", "--isolated", "--no-cache", "--select", "F401"),
    ("isort", "--profile", "black", "-p", "sglang", "--check-only"),
    ("codespell", "-L", "cann,thi,makro,wil,rouge,PRIS"),
)


def all_of_them() -> list[Series]:
    """Every pull request as a series of its own, without tree ids."""
    return [
        Series(
            name=f"upstream-pr/{folder.name}",
            releases=(RELEASE,),
            tag=f"v{RELEASE}",
            shape="",
            base="",
            tree="",
            patches=tuple(read_patch(path) for path in sorted(folder.glob("*.patch"))),
        )
        for folder in sorted(FOLDER.iterdir())
        if folder.is_dir()
    ]


def check(one: Series, options: Options) -> Outcome:
    outcome, start = Outcome(one), time.monotonic()
    letter = (PATCHES / one.name / "COVER.md").read_text(encoding="utf-8")
    places = [letter.find(section) for section in SECTIONS]
    outcome.expect(-1 not in places and places == sorted(places), "COVER.md lacks a section of the template")
    try:
        _apply(one, options, outcome)
    except (trees.Missing, GitError) as error:
        outcome.failures.append(str(error))
    outcome.seconds = time.monotonic() - start
    return outcome


def _apply(one: Series, options: Options, outcome: Outcome) -> None:
    base = trees.read(RELEASE, one.files, trees=options.trees, wheels=options.wheels)
    with tempfile.TemporaryDirectory(prefix="sglang-guards-") as name:
        scratch = Path(name)
        repository = scratch / "repository"
        gitobjects.new_repository(repository, base, f"SGLang {RELEASE}")
        gitobjects.plain(repository, "am", "--no-3way", *(str(patch.path) for patch in one.patches))
        patched = {path: (repository / path).read_bytes() for path in one.files}
        must_compile(patched, outcome)
        _formatted(repository, one, outcome)
        tests = [path for path in one.files if path.startswith(TESTS)]
        if options.tests and tests:
            place = trees.overlay(trees.tree(RELEASE, options.trees), patched, scratch / "patched")
            tests_pass(place, place, tests, outcome)


def _formatted(repository: Path, one: Series, outcome: Outcome) -> None:
    """What a formatter says of a file that it said nothing of before the change."""
    absent = {tool for tool in VERSIONS if not _is_upstreams(tool)}
    if absent:
        outcome.notes.append("not here: " + ", ".join(f"{tool} {VERSIONS[tool]}" for tool in sorted(absent)))
    commands = [command for command in FORMATTERS if command[0] not in absent]
    after = {
        (command, path): _complaints(repository, command, path) for command in commands for path in one.files
    }
    gitobjects.plain(repository, "checkout", "-q", "base")
    for (command, path), said in after.items():
        if said:
            known = (repository / path).is_file() and bool(_complaints(repository, command, path))
            outcome.expect(known, f"{' '.join(command[:2])}: {path}: {said[-200:]}")
    gitobjects.plain(repository, "checkout", "-q", "main")


def _is_upstreams(tool: str) -> bool:
    if shutil.which(tool) is None:
        return False
    done = subprocess.run([tool, "--version"], capture_output=True, text=True)
    return VERSIONS[tool] in done.stdout


def _complaints(repository: Path, command: tuple[str, ...], path: str) -> str:
    done = subprocess.run([*command, path], cwd=repository, capture_output=True, text=True)
    return (done.stdout + done.stderr).strip() or "exit code not 0" if done.returncode else ""

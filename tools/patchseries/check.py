"""Everything that must hold for a series, on the release that it is for."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tools.patchseries import gitobjects, trees
from tools.patchseries.gitobjects import GitError
from tools.patchseries.manifest import PATCHES, TESTS, Series, header, rules_of
from tools.patchseries.refresh import format_patches

ROOT = PATCHES.parent
STUBS = ROOT / "tests/patches/stubs"
RUNNER = ROOT / "tests/patches/run_series_tests.py"
#: Test files of the series that run on the untouched release, too.
KERNEL_TESTS = tuple(
    f"test/registered/unit/layers/moe/test_{name}.py"
    for name in ("fused_moe_sum_all_reduce", "fp8_scale_of_routed_rows")
)
#: Probes of sglang_guards.source that must answer True on a patched tree, with the first release they apply to.
PROBES = {
    "validator_present": 10,
    "zero_store_guarded": 10,
    "fused_add_relaxed": 10,
    "cache3_skipped_with_flag": 10,
    "gate_checks_platform": 10,
    "gate_checks_deterministic": 10,
    "combine_covers_cuda": 10,
    "combine_covers_hip": 10,
    "combine_covers_xpu": 10,
    "combine_covers_musa": 10,
    "combine_covers_other": 10,
    "gate_checks_lora_hooks": 11,
    "fusion_lists_wrappers": 10,
}
#: And those that must answer False.
REFUTED = ("fp8_scale_reads_unwritten_rows",)
#: Tests of the kernel that fail on the untouched release, where they show the fault or what is not there yet, with
#: the last such release.
FAULTS = {
    "test_filtered_experts_store_nothing": 22,
    "test_platforms_that_ignore_the_flag": 23,
    "test_a_hook_after_the_down_projection_counts": 23,
    "test_no_buffer_per_route": 23,
    "test_off_in_batch_invariant_mode": 23,
    "test_bands_of_columns_cover_the_output": 23,
    "test_a_band_takes_half_of_l2": 23,
    "test_rows_that_nobody_wrote_do_not_count": 23,
    "test_a_rank_without_a_route_has_no_scale": 23,
    "test_down_projection_ignores_stale_memory": 23,
}


@dataclass
class Outcome:
    """What the check of one series found; `failures` is empty when it passed."""

    series: Series
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def expect(self, holds: bool, failure: str) -> bool:
        if not holds:
            self.failures.append(failure)
        return holds


@dataclass(frozen=True)
class Options:
    trees: Path = trees.DEFAULT
    wheels: Path | None = None
    tests: bool = True


def check(series: Series, options: Options) -> Outcome:
    outcome, start = Outcome(series), time.monotonic()
    for failure in lint(series):
        outcome.failures.append(failure)
    try:
        _check_on_release(series, options, outcome)
    except (trees.Missing, GitError) as error:
        outcome.failures.append(str(error))
    outcome.seconds = time.monotonic() - start
    return outcome


def lint(series: Series) -> Iterator[str]:
    """Headers and file names, without any release."""
    folder = PATCHES / series.name
    listed = [patch.path.name for patch in series.patches]
    there = sorted(path.name for path in folder.glob("*.patch"))
    if listed != there:
        yield f"manifest and folder differ: {sorted(set(listed) ^ set(there)) or 'order'}"
    for number, patch in enumerate(series.patches, 1):
        name = patch.path.name
        if not patch.path.is_file():
            continue
        text = patch.text
        if not name.startswith(f"{number:04d}-"):
            yield f"{name}: is number {number} of the series"
        if not 0 < len(patch.subject) <= 72:
            yield f"{name}: the subject has {len(patch.subject)} characters"
        if not re.fullmatch(r"no|not-needed|https://\S+", header(text, "Forwarded")):
            yield f"{name}: Forwarded is «{header(text, 'Forwarded')}»"
        if not re.fullmatch(r"\d{4}-\d\d-\d\d", header(text, "Last-Update")):
            yield f"{name}: Last-Update is «{header(text, 'Last-Update')}»"
        if not header(text, "Guard-Rule") or rules_of(text) != patch.rules:
            yield f"{name}: Guard-Rule and the manifest differ"
        if "\r\n" in text or "GIT binary patch" in text:
            yield f"{name}: CRLF or binary content"


def _check_on_release(series: Series, options: Options, outcome: Outcome) -> None:
    for release in series.releases[:-1]:
        files = trees.read(release, series.files, trees=options.trees, wheels=options.wheels)
        outcome.expect(
            gitobjects.tree(files) == series.base, f"SGLang {release} differs from the series' base"
        )
    release = series.releases[-1]
    base = trees.read(release, series.files, trees=options.trees, wheels=options.wheels)
    if not outcome.expect(
        gitobjects.tree(base) == series.base, f"SGLang {release} differs from the series' base"
    ):
        return
    with tempfile.TemporaryDirectory(prefix="sglang-guards-") as name:
        scratch = Path(name)
        repository = scratch / "repository"
        gitobjects.new_repository(repository, base, f"SGLang {release}")
        paths = [str(patch.path) for patch in series.patches]
        try:
            gitobjects.plain(repository, "am", "--no-3way", *paths)
        except GitError as error:
            outcome.failures.append(f"git am: {error}")
            return
        tree = gitobjects.plain(repository, "rev-parse", "HEAD^{tree}").strip()
        outcome.expect(tree == series.tree, f"patched tree is {tree}, the manifest says {series.tree}")
        _must_not_apply_twice(repository, paths, outcome)
        _must_regenerate(repository, series, scratch / "again", outcome)
        patched = {path: (repository / path).read_bytes() for path in series.files}
        must_compile(patched, outcome)
        root = trees.tree(release, options.trees)
        place = trees.overlay(root, patched, scratch / "patched")
        _guard_is_satisfied(series, place, outcome)
        if options.tests:
            tests = [path for path in series.files if path.startswith(TESTS)]
            tests_pass(place, place, tests, outcome)
            _faults_show(series, root, place, outcome)


def _must_not_apply_twice(repository: Path, paths: list[str], outcome: Outcome) -> None:
    for path in paths:
        try:
            gitobjects.plain(repository, "apply", "--check", path)
            outcome.failures.append(f"{Path(path).name} applies a second time")
        except GitError:
            continue


def _must_regenerate(repository: Path, series: Series, out: Path, outcome: Outcome) -> None:
    for patch, again in zip(series.patches, format_patches(repository, out), strict=False):
        same = again.name == patch.path.name and again.read_bytes() == patch.path.read_bytes()
        outcome.expect(same, f"{patch.path.name} is not what git format-patch writes; run refresh")


def must_compile(files: dict[str, bytes], outcome: Outcome) -> None:
    for name, content in files.items():
        try:
            compile(content, name, "exec", dont_inherit=True)
        except SyntaxError as error:
            outcome.failures.append(f"{name}: {error}")


def _guard_is_satisfied(series: Series, place: Path, outcome: Outcome) -> None:
    """The guard's own probes, on the patched tree."""
    sys.path.insert(0, str(ROOT))
    from sglang_guards import source

    found = source.find(place)
    assert found is not None
    minor = int(series.releases[-1].split(".")[2])
    for name, first in PROBES.items():
        if minor >= first:
            answer = found.ask(name)
            outcome.expect(
                answer.value is True, f"probe {name}: {answer.value} ({answer.detail}, {answer.where})"
            )
    for name in REFUTED:
        answer = found.ask(name)
        outcome.expect(
            answer.value is False, f"probe {name}: {answer.value} ({answer.detail}, {answer.where})"
        )


def _run(tree: Path, place: Path, tests: list[str]) -> dict[str, list[str]]:
    """Run test files of `place` on the SGLang in `tree`; {"passed": [...], "failed": [...]}."""
    stubs = [STUBS / "base"]
    if not (tree / "sglang/srt/plugins").is_dir():  # 0.5.10 imports the compiled kernels on CPU, too
        stubs.append(STUBS / "kernels")
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, [tree, *stubs])),
        "TRITON_INTERPRET": "1",
        "HF_HUB_OFFLINE": "1",
        "SGLANG_PLUGINS": "none",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    files = [str(place / test) for test in tests]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(RUNNER), *files],
        env=env,
        capture_output=True,
        text=True,
        timeout=600,
    )
    try:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (IndexError, ValueError):
        return {"passed": [], "failed": [f"the runner died: {done.stderr.strip()[-600:]}"]}


def tests_pass(tree: Path, place: Path, tests: list[str], outcome: Outcome) -> None:
    result = _run(tree, place, tests)
    for name in result["failed"]:
        outcome.failures.append(f"test failed: {name}")
    outcome.expect(len(result["passed"]) > 0, "no test ran")
    outcome.notes.append(f"{len(result['passed'])} tests")


def _faults_show(series: Series, root: Path, place: Path, outcome: Outcome) -> None:
    """The same kernel tests on the untouched release: those of its faults must fail, all others must pass."""
    minor = int(series.releases[-1].split(".")[2])
    source = "".join((place / name).read_text(encoding="utf-8") for name in KERNEL_TESTS)
    wanted = {name for name, last in FAULTS.items() if minor <= last and f"def {name}(" in source}
    failed = {name.split(".")[-1].split(" ")[0] for name in _run(root, place, [*KERNEL_TESTS])["failed"]}
    outcome.expect(
        failed == wanted, f"on the untouched release {sorted(failed)} failed, not {sorted(wanted)}"
    )
    outcome.notes.append(f"{len(wanted)} faults shown on the untouched release")

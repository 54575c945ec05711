"""Releases on this machine, on an index made here (real pip, no network), and the table of check --all-releases."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest

from sglang_guards.cli.main import main
from sglang_guards.preflight import all_releases, releases
from sglang_guards.preflight.all_releases import Row, verdict_line

LAUNCH = ["--gpu", "1xH100", "--", "python", "-m", "sglang.launch_server", "--model-path", "x"]


def wheel(folder: Path, version: str) -> None:
    """The smallest wheel of an «SGLang» that pip takes."""
    info = f"sglang-{version}.dist-info"
    with zipfile.ZipFile(folder / f"sglang-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr("sglang/srt/server_args.py", "raise ImportError('not a real one')\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("SGLANG_GUARDS_TREES", str(tmp_path / "trees"))
    return folder


def test_published_are_final_releases_from_the_oldest_on(index: Path) -> None:
    for version in ("0.5.8", "0.5.9", "0.5.10", "0.5.10.post1", "0.6.0rc1", "0.6.0.dev1"):
        wheel(index, version)
    assert releases.published() == ("0.5.9", "0.5.10", "0.5.10.post1")


def test_fetched_once_and_found_again(index: Path, tmp_path: Path) -> None:
    wheel(index, "0.5.10")
    trees, missing, notes = all_releases._trees()
    assert (trees, missing, notes) == ({"0.5.10": tmp_path / "trees" / "0.5.10"}, [], [])
    (index / "sglang-0.5.10-py3-none-any.whl").unlink()
    trees, missing, notes = all_releases._trees()
    assert list(trees) == ["0.5.10"]
    assert "pip reaches no package index" in notes[0]
    assert releases.unpacked() == trees


def test_without_trees_and_without_an_index_it_says_so(
    index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--all-releases", *LAUNCH]) == 2
    assert "and pip reaches no package index" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_a_row(index: Path, tmp_path: Path) -> None:
    wheel(index, "0.5.10")
    (tmp_path / "trees").write_text("in the way", encoding="utf-8")
    trees, missing, _ = all_releases._trees()
    assert trees == {}
    assert [(row.release, row.verdict, row.safe) for row in missing] == [("0.5.10", "unknown", None)]
    assert missing[0].why.startswith("could not be fetched: ")


def answer(*severities: str, **more: Any) -> dict[str, Any]:
    findings = [{"id": "FMS101", "severity": severity, "message": "why"} for severity in severities]
    verdict = "fail" if "error" in severities else "pass"
    return {"verdict": verdict, "findings": findings, "skipped": []} | more


@pytest.mark.parametrize(
    ("said", "fail_on", "strict", "safe"),
    [
        (answer(), "error", False, True),
        (answer("warning"), "error", False, True),
        (answer("warning"), "warning", False, False),
        (answer("error"), "error", False, False),
        (answer("error"), "never", False, False),
        (answer(skipped=[{"id": "RUN101", "missing": "gpu.sm"}]), "error", True, False),
        (answer(verdict="unknown"), "error", False, None),
        ({"refused": "SGLang 0.5.9 does not know --x"}, "error", False, False),
        ({"unknown": "SGLang cannot be imported here"}, "error", False, None),
    ],
)
def test_row(said: dict[str, Any], fail_on: str, strict: bool, safe: bool | None) -> None:
    assert all_releases._row("0.5.15", said, fail_on, strict).safe is safe


def test_the_verdict_names_spans() -> None:
    rows = [Row(f"0.5.{n}", "", safe) for n, safe in enumerate([False, True, True, None, True, False])]
    assert verdict_line(rows) == (
        "SAFE in 0.5.1 to 0.5.2, 0.5.4 · not safe in 0.5.0, 0.5.5 · unknown for 0.5.3"
    )
    assert verdict_line(rows[:1]) == "SAFE in no release that could be judged · not safe in 0.5.0"

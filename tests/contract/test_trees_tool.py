"""tools/trees.py with wheels made here: real pip, no network."""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from tests.releases import FORKS, RELEASES


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "trees_tool", Path(__file__).parents[2] / "tools" / "trees.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tool = _load()


def wheel(folder: Path, version: str, member: str) -> None:
    """The smallest wheel that pip takes, with one file of its own."""
    info = f"sglang-{version}.dist-info"
    with zipfile.ZipFile(folder / f"sglang-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(member, "x = 1\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    wheel(folder, "0.0.1", "sglang/srt/server_args.py")
    wheel(folder, "0.0.2", "sglang/nothing.py")
    return folder


@pytest.fixture
def dest(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    return tmp_path / "trees"


def test_releases_are_unpacked_once_and_what_fails_is_named(
    dest: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tool.main(["0.0.3", "0.0.2", "0.0.1", "--dest", str(dest)]) == 1
    missing, empty, good = capsys.readouterr().out.splitlines()
    assert missing == "0.0.3  failed: No matching distribution found for sglang==0.0.3"
    assert empty.startswith("0.0.2  failed: ")
    assert empty.endswith("holds no sglang/srt")
    assert good.startswith("0.0.1  unpacked (")
    assert [path.name for path in dest.iterdir()] == ["0.0.1"]
    assert (dest / "0.0.1/sglang/srt/server_args.py").read_text() == "x = 1\n"

    assert tool.main(["0.0.1", "--dest", str(dest)]) == 0
    assert capsys.readouterr().out == "0.0.1  present\n"


@pytest.mark.parametrize(
    "arguments", [[], ["--all", "0.0.1"], ["--ci", "--all"], ["-r x"], ["0.0.1; rm"], ["../x"]]
)
def test_bad_usage(dest: Path, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        tool.main([*arguments, "--dest", str(dest)])
    assert stopped.value.code == 2
    assert not dest.exists()


def test_ci_runs_releases_that_the_tests_know() -> None:
    assert set(tool.CI_RELEASES) < {*RELEASES, *FORKS}

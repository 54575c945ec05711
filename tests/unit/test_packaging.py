"""What is shipped: the wheel's contents, and the hashed requirements for development."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import zipfile
from email import message_from_string
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tools.toml import tomllib

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("hatchling, which builds the wheel, is not installed; run tools/env.sh")
    folder = tmp_path_factory.mktemp("wheel")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--wheel-dir", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(ROOT)], check=True)
    (made,) = folder.glob("*.whl")
    return zipfile.ZipFile(made)


def test_the_wheel_holds_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    assert {name.split("/")[0] for name in names} == {"sglang_guards", "sglang_guards-0.1.0.dist-info"}
    assert [name for name in names if name.endswith((".pth", ".pyc", ".so", ".egg-link"))] == []
    assert [name for name in names if "test" in name.lower() or "/." in name or "cache" in name] == []
    shipped = [
        path for path in (ROOT / "sglang_guards").rglob("*") if path.suffix in (".py", ".json", ".typed")
    ]
    here = {path.relative_to(ROOT).as_posix() for path in shipped}
    here = {name for name in here if "/." not in name and "__pycache__" not in name}
    assert here - set(names) == set()
    assert {"sglang_guards/py.typed", "sglang_guards/schemas/report.json"} <= set(names)


def test_its_entry_points_and_requirements(wheel: zipfile.ZipFile) -> None:
    info = "sglang_guards-0.1.0.dist-info"
    assert wheel.read(f"{info}/entry_points.txt").decode().split() == [
        "[console_scripts]", "sglang-guards", "=", "sglang_guards.cli.main:main",
        "[sglang.srt.plugins]", "sglang_guards", "=", "sglang_guards.plugin:register",
    ]  # fmt: skip
    meta = message_from_string(wheel.read(f"{info}/METADATA").decode())
    needed = [r for r in meta.get_all("Requires-Dist", []) if "extra ==" not in r]
    assert {Requirement(r).name for r in needed} == {"packaging", "rich"}, (
        "SGLang and torch are never pulled in"
    )
    assert meta["Requires-Python"] == ">=3.10"
    assert any(name.endswith("/LICENSE") for name in wheel.namelist())


def test_no_file_of_the_wheel_is_writable_by_others_or_runs(wheel: zipfile.ZipFile) -> None:
    assert [entry.filename for entry in wheel.infolist() if (entry.external_attr >> 16) & 0o022] == []


def pins() -> dict[str, tuple[str, list[str]]]:
    """Name -> (version, hashes) of dev-hashes.txt."""
    text = (ROOT / "requirements" / "dev-hashes.txt").read_text(encoding="utf-8")
    entries = re.sub(r"^ *#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    found = {}
    for entry in filter(str.strip, entries):
        match = re.fullmatch(r"([a-z0-9-]+)==(\S+)((?: +--hash=sha256:[0-9a-f]{64})+) *", entry)
        assert match, entry
        found[match[1]] = (match[2], match[3].split())
    return found


def test_every_requirement_of_development_is_pinned_with_hashes() -> None:
    pinned = pins()
    extras = PROJECT["optional-dependencies"]
    for text in [*PROJECT["dependencies"], *extras["dev"], *extras["docs"]]:
        needed = Requirement(text)
        assert needed.name in pinned, needed.name
        assert needed.specifier.contains(pinned[needed.name][0]), (text, pinned[needed.name][0])
    assert "torch" not in pinned

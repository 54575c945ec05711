from __future__ import annotations

import importlib.util
import logging
import sys
from pathlib import Path

import pytest

from sglang_guards.hook.import_hooks import when_imported


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = "late_import_probe"
    (tmp_path / f"{name}.py").write_text("VALUE = 1\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name


def test_runs_after_the_import_and_once(package: str) -> None:
    seen: list[int] = []
    before = list(sys.meta_path)
    when_imported(package, lambda: seen.append(sys.modules[package].VALUE))
    assert seen == []
    module = __import__(package)
    assert seen == [1]
    assert sys.meta_path == before
    assert type(module.__loader__).__name__ == "SourceFileLoader"
    del sys.modules[package]
    __import__(package)
    assert seen == [1]


def test_runs_at_once_when_loaded(package: str) -> None:
    __import__(package)
    seen: list[str] = []
    when_imported(package, lambda: seen.append("now"))
    assert seen == ["now"]


def test_a_failing_callback_does_not_fail_the_import(package: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        when_imported(package, lambda: print(1 / 0))
        assert __import__(package).VALUE == 1
    assert "ZeroDivisionError" in caplog.text


def test_a_missing_module_stays_missing() -> None:
    when_imported("no_such_module_of_ours", lambda: None)
    with pytest.raises(ModuleNotFoundError):
        __import__("no_such_module_of_ours")


def test_a_look_without_an_import_and_a_failed_import_lose_nothing(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    before = list(sys.meta_path)
    when_imported(package, lambda: seen.append("imported"))
    when_imported(package, lambda: seen.append("twice"))
    assert importlib.util.find_spec(package) is not None
    file = tmp_path / f"{package}.py"
    file.write_text("raise ImportError('not yet')\n", encoding="utf-8")
    importlib.invalidate_caches()
    with pytest.raises(ImportError):
        __import__(package)
    assert seen == []
    file.write_text("VALUE = 12345\n", encoding="utf-8")
    importlib.invalidate_caches()
    __import__(package)
    assert sorted(seen) == ["imported", "twice"]
    assert sys.meta_path == before
    del sys.modules[package]

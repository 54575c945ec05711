"""Whose no a refusal is: only what SGLang's own tree raises on purpose counts."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from sglang_guards.build import stand_ins
from sglang_guards.preflight import refusals
from sglang_guards.source import distribution


def raised(body: str, folder: Path, name: str = "sglang") -> BaseException:
    """What a function of a module in `folder`/`name` raises."""
    file = folder / name / "srt" / "server_args.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(body, encoding="utf-8")
    module = types.ModuleType("made")
    exec(compile(body, str(file), "exec"), vars(module))
    function: Callable[[], None] = module.go
    try:
        function()
    except BaseException as error:  # noqa: BLE001 - what was raised is the answer
        return error
    raise AssertionError("nothing was raised")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    stand_ins.forget()
    return tmp_path


def test_what_sglang_raises_on_purpose_is_its_own(folder: Path) -> None:
    assert (
        refusals.doubt(raised("def go():\n    raise ValueError('TP 3 does not divide 64')\n", folder)) is None
    )
    assert refusals.doubt(raised("def go():\n    assert 1 == 2\n", folder)) is None
    body = "import json\ndef go():\n    json.loads('{')\n"  # the standard library, on the operator's words
    assert refusals.doubt(raised(body, folder)) is None


def test_recursion_is_ours(folder: Path) -> None:
    why = refusals.doubt(raised("def go():\n    go()\n", folder))
    assert why is not None
    assert "recursion" in why.reason


def test_a_missing_file_of_the_target_machine_is_not_a_refusal(folder: Path) -> None:
    body = (
        "def go():\n    try:\n        open('/target/devices.json')\n"
        "    except OSError as e:\n        raise RuntimeError('no devices') from e\n"
    )
    why = refusals.doubt(raised(body, folder))
    assert why is not None
    assert "/target/devices.json" in why.reason
    assert "machine that serves" in why.hint


def test_what_a_plugin_raises_is_not_sglangs(folder: Path) -> None:
    error = raised("def go():\n    raise ValueError('no')\n", folder, "some_plugin")
    assert refusals.doubt(error) is None  # any other library that SGLang calls speaks for the launch
    why = refusals.doubt(error, ("some_plugin",))
    assert why is not None
    assert "some_plugin" in why.reason


def test_what_only_a_stand_in_was_asked_is_not_a_refusal(folder: Path) -> None:
    stand_ins.asked.append("the truth of flashinfer.x")
    try:
        assert refusals.doubt(raised("def go():\n    raise ValueError('no')\n", folder)) is not None
    finally:
        stand_ins.forget()


@pytest.mark.parametrize(("wanted", "doubted"), [("4.57.1", True), ("5.3.0", False), (None, False)])
def test_another_major_of_transformers(
    folder: Path, monkeypatch: pytest.MonkeyPatch, wanted: str | None, doubted: bool
) -> None:
    monkeypatch.setattr(refusals, "required", lambda package: wanted)
    monkeypatch.setattr(refusals, "_installed", lambda package: "5.12.1")
    file = folder / "sglang" / "srt" / "utils" / "hf_transformers_utils.py"
    body = "def go():\n    assert hasattr(object(), 'num_attention_heads')\n"
    module = types.ModuleType("made")
    exec(compile(body, str(file), "exec"), vars(module))
    try:
        module.go()
    except AssertionError as error:
        why = refusals.doubt(error)
    assert (why is not None) is doubted
    if why is not None:
        assert "transformers 5.12.1" in why.reason
        assert "4.57.1" in why.reason
    other = raised("def go():\n    raise ValueError('flags')\n", folder)
    assert refusals.doubt(other) is None, "a refusal that reads no config is SGLang's with any transformers"


def test_the_pin_of_the_installed_release(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = types.ModuleType("sglang")
    module.__path__ = [str(tmp_path / "sglang")]
    monkeypatch.setitem(sys.modules, "sglang", module)
    made = distribution.Distribution("lsglang", "1.6.5", ("torch", "transformers==5.6.0"))
    monkeypatch.setattr(distribution, "owner", lambda root: made if root == tmp_path / "sglang" else None)
    assert refusals.required("transformers") == "5.6.0"
    assert refusals.required("flashinfer") is None

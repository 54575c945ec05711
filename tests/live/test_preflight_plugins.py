"""Other SGLang plugins of the environment: named when left out, loaded on request, and never blamed on SGLang."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.live.preflight_cases import ROOT, SERVER_MODEL, run
from tests.live.test_preflight_target import QWEN3, written

pytestmark = pytest.mark.live

#: Swallows what `check_server_args` refuses, or refuses by itself.
_PLUGIN = """
import os

def register():
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    HookRegistry.register("sglang.srt.server_args.ServerArgs.check_server_args", around, HookType.AROUND)

def around(original, self, *args, **kwargs):
    if os.environ.get("TEST_PLUGIN_RAISES"):
        raise ValueError("the plugin says no")
    try:
        return original(self, *args, **kwargs)
    except (AssertionError, ValueError):
        return None
"""


def site(folder: Path) -> Path:
    info = folder / "guards_test_plugin-1.5.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: guards-test-plugin\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text("[sglang.srt.plugins]\nlenient = guards_test_plugin:register\n")
    (folder / "guards_test_plugin.py").write_text(_PLUGIN)
    return folder


def answers(
    folder: Path, cases: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> list[dict[str, Any]]:
    from tests.live import preflight_cases

    usual = preflight_cases.environment

    def environment(release: str) -> dict[str, str]:
        env = usual(release)
        return env | {"PYTHONPATH": os.pathsep.join((env["PYTHONPATH"], str(folder)))}

    monkeypatch.setattr(preflight_cases, "environment", environment)
    return run("0.5.15", cases, cwd=ROOT)


def test_plugins_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = written(tmp_path / "model", QWEN3)
    fine = {"argv": [*SERVER_MODEL, model, "--tp", "4"], "gpu": "4xH200", "build": False}
    # check_server_args refuses it; the plugin swallows that
    refused = fine | {"argv": [*fine["argv"], "--base-gpu-id", "-1"]}  # type: ignore[misc]
    raises = fine | {"load_plugins": True, "env": {"TEST_PLUGIN_RAISES": "1"}}
    left_out, loaded, prevented, passed, blamed = answers(
        site(tmp_path / "site"),
        [fine, fine | {"load_plugins": True}, refused, refused | {"load_plugins": True}, raises],
        monkeypatch,
    )
    assert any("guards-test-plugin 1.5" in n and "not loaded" in n for n in left_out["notes"]), left_out[
        "notes"
    ]
    assert any("loaded as SGLang would: guards-test-plugin 1.5" in n for n in loaded["notes"]), json.dumps(
        loaded
    )
    assert "does not with the plugins" in prevented.get("error", ""), prevented
    assert "--plugins" in prevented["hint"]
    assert passed["verdict"] == "pass"
    assert "guards_test_plugin raised it" in blamed["error"]
    assert "the plugin says no" in blamed["error"]

"""The auto-enable list inside real SGLang: its plugin loader, its resolution, its own later passes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.launches.checks import MODELS, ROOT, environment
from tests.live.runs import hook_answers
from tests.trees import PLUGIN_RELEASES, running, tree

RELEASES = running("auto", PLUGIN_RELEASES)
BASE = ["--model-path", str(MODELS / "deepseek-v2-lite"), "--tp", "4"]
OWN = ["--model-path", str(MODELS / "minimax-m2"), "--tp", "4", "--trust-remote-code"]

#: Name -> scenario, and whether fusion must be on afterwards.
SCENARIOS: dict[str, tuple[dict[str, Any], bool]] = {
    "sm90": ({"argv": BASE, "gpu": "4xH100"}, True),
    "sm100": ({"argv": BASE, "gpu": "4xB200"}, True),
    "own-decoder": ({"argv": OWN, "gpu": "4xH100"}, True),
    "sm120": ({"argv": BASE, "gpu": "4xRTX-PRO-6000"}, False),
    "hip": ({"argv": BASE, "gpu": "4xMI300X"}, False),
    "h20": ({"argv": BASE, "gpu": "4xH20"}, False),
    "tp1": ({"argv": [*BASE[:2], "--tp", "1"], "gpu": "4xH100"}, False),
    "ep2": ({"argv": [*BASE, "--ep-size", "2"], "gpu": "4xH100"}, False),
    "pp2": ({"argv": [*BASE[:2], "--tp", "2", "--pp-size", "2"], "gpu": "4xH100"}, False),
    "nodes": (
        {"argv": [*BASE, "--nnodes", "2", "--node-rank", "0", "--dist-init-addr", "a:1"], "gpu": "2xB200"},
        False,
    ),
    "dp-attention": ({"argv": [*BASE, "--enable-dp-attention", "--dp-size", "4"], "gpu": "4xH100"}, False),
    "forbidden": ({"argv": [*BASE, "--enforce-disable-flashinfer-allreduce-fusion"], "gpu": "4xH100"}, False),
    "deterministic": ({"argv": [*BASE, "--enable-deterministic-inference"], "gpu": "4xH100"}, False),
    "auto-off": ({"argv": BASE, "gpu": "4xH100", "env": {"SGLANG_GUARDS_AUTO": "0"}}, False),
    "guards-off": ({"argv": BASE, "gpu": "4xH100", "env": {"SGLANG_GUARDS": "off"}}, False),
    "warn": ({"argv": BASE, "gpu": "4xH100", "env": {"SGLANG_GUARDS": "warn"}}, False),
    "ignored": (
        {"argv": BASE, "gpu": "4xH100", "env": {"SGLANG_GUARDS_IGNORE": "ARF301=we measure first"}},
        False,
    ),
}


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("release", RELEASES)
def test_scenario(release: str, name: str) -> None:
    answer, on = hook_answers(release)["auto"][name], SCENARIOS[name][1]
    assert answer["raised"] is None, answer
    assert bool(answer["fusion"]) is on, answer["log"]
    assert not [line for line in answer["log"] if "fusion is left as SGLang decided" in line]
    lines = [line for line in answer["log"] if "[ARF301]" in line and " -> " in line]
    assert len(lines) == (1 if on or name == "warn" else 0)
    if on:
        assert lines[0].startswith("INFO")
        assert "SGLANG_GUARDS_AUTO=0" in lines[0]
    if name == "warn":
        assert "would set" in lines[0]


@pytest.mark.parametrize("gpu", ["4xH100", "4xB200", "4xRTX-PRO-6000"])
def test_qwen35_moe_where_the_list_lacks_it(tmp_path: Path, gpu: str) -> None:
    """0.5.10 edited as the tree of early March 2026; it has no plugins, so the method is wrapped by hand."""
    package = edited_0_5_10(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "tests.live.wrapped", gpu, str(MODELS / "qwen3.5-122b-a10b-fp8")],
        env=environment("0.5.10") | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(package)])},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    on = gpu != "4xRTX-PRO-6000"
    assert answer["before"] is False, "SGLang's own list must lack it"
    assert answer["after"] is on, answer["log"]
    assert len(answer["log"]) == int(on)


def edited_0_5_10(folder: Path) -> Path:
    """A tree of links to 0.5.10 with one file of its own: server_args.py without Qwen3.5 on the list."""
    original, copy = tree("0.5.10") / "sglang", folder / "tree" / "sglang"
    (copy / "srt").mkdir(parents=True)
    for here, there in ((original, copy), (original / "srt", copy / "srt")):
        for entry in here.iterdir():
            if entry.name not in ("srt", "server_args.py", "__pycache__"):
                (there / entry.name).symlink_to(entry)
    text = (original / "srt" / "server_args.py").read_text(encoding="utf-8")
    for name in ("Qwen3_5MoeForConditionalGeneration", "Qwen3_5ForConditionalGeneration"):
        listed = f'                "{name}",\n'
        assert listed in text
        text = text.replace(listed, "")
    (copy / "srt" / "server_args.py").write_text(text, encoding="utf-8")
    return folder / "tree"

"""Public plugins of others and ours in SGLang's own loader, in both orders: each does what it does alone."""

from __future__ import annotations

import os
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests.launches.checks import MODELS
from tests.live import preflight_cases
from tests.live.preflight_cases import ROOT, SERVER_MODEL
from tests.live.runs import FLAG, QWEN3, hooked
from tests.plugins import unpacked

pytestmark = pytest.mark.live

RELEASE = "0.5.23"
#: Distribution -> the name of its entry point.
OTHERS = {
    "eagle-harness": "eagle_harness",
    "kern-llm": "kern",
    "lifeboatcache": "lifeboat",
    "sglang-radeon-rdna3": "radeon_rdna3",
    "sglang-restomod": "restomod",
    "vtext-editor": "voicing_convo",
}
#: What makes them act.
ENV = {"LIFEBOAT_CACHE": "1", "KERN_MANIFEST": "/nowhere/manifest.json"}
GOOD = ["--model-path", QWEN3, "--tp", "4"]
REFUSED = [*GOOD, FLAG, "--enable-deterministic-inference"]
#: Drawn anew in every process.
DRAWN = {"random_seed", "port", "nccl_port", "dist_init_addr"}


def ours(folder: Path) -> str:
    """A folder that makes our entry point the first one that SGLang finds."""
    info = folder / "sglang_guards-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang-guards\nVersion: 0\n")
    points = [e for e in metadata.distribution("sglang-guards").entry_points if "sglang" in e.group]
    text = "\n".join(f"[{e.group}]\n{e.name} = {e.value}" for e in points)
    (info / "entry_points.txt").write_text(text + "\n")
    return str(folder)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], dict[str, Any]]:
    """(distribution, order) -> the answer."""
    first = ours(tmp_path_factory.mktemp("first"))
    asked: dict[tuple[str, str], dict[str, Any]] = {}
    for name, entry in OTHERS.items():
        try:
            theirs = str(unpacked(name))
        except pytest.skip.Exception:
            continue
        both = {**ENV, "SGLANG_PLUGINS": f"sglang_guards,{entry}"}
        launch = {"argv": GOOD, "gpu": "4xH100"}
        asked[name, "alone"] = {**launch, "path": [theirs], "env": {**ENV, "SGLANG_PLUGINS": entry}}
        asked[name, "before"] = {**launch, "path": [theirs], "env": both}
        asked[name, "after"] = {**launch, "path": [first, theirs], "env": both}
        asked[name, "before, refused"] = {**asked[name, "before"], "argv": REFUSED}
        asked[name, "after, refused"] = {**asked[name, "after"], "argv": REFUSED}
    return dict(zip(asked, hooked(RELEASE, list(asked.values())), strict=True)) if asked else {}


@pytest.mark.parametrize("name", OTHERS)
def test_neither_harms_the_other(runs: dict[tuple[str, str], dict[str, Any]], name: str) -> None:
    unpacked(name)
    alone = runs[name, "alone"]
    assert alone["raised"] is None, alone
    executed = f"Executed general plugin: {OTHERS[name]}"
    if (
        name == "vtext-editor" and executed not in alone["loader"]
    ):  # vtext-editor 1.0.4 imports what 0.5.23 no longer offers
        assert "ImportError" in alone["loader"], alone["loader"]
        pytest.skip(f"{name} does not load on SGLang {RELEASE} by itself: {alone['loader'].splitlines()[-1]}")
    for order in ("before", "after"):
        run = runs[name, order]
        told = [line for line in run["loader"].splitlines() if line.startswith("Executed general plugin")]
        expected = [executed, "Executed general plugin: sglang_guards"]
        assert told == (expected if order == "before" else expected[::-1])
        assert "Failed" not in run["loader"]
        assert run["raised"] is None, run
        assert _kept(run) == _kept(alone)
        assert len([line for line in run["log"] if " armed (" in line]) == 1, run["log"]
        assert not [line for line in run["log"] if "not active" in line or "could not" in line], run["log"]
        refused = runs[name, f"{order}, refused"]
        assert refused["raised"] == "LaunchRefused"
        assert "FMS104" in refused["text"]


def _kept(run: dict[str, Any]) -> dict[str, Any]:
    args = {k: v for k, v in run["args"].items() if k not in DRAWN and " at 0x" not in v}
    return {"args": args, "models": run["models"]}


def test_they_act_where_they_are_asked_to(runs: dict[tuple[str, str], dict[str, Any]]) -> None:
    """The comparison above would hold for plugins that do nothing."""
    for name in ("lifeboatcache", "kern-llm"):
        unpacked(name)
    for order in ("alone", "before", "after"):
        assert runs["lifeboatcache", order]["args"]["hicache_storage_backend"] == "'dynamic'"
        assert "Qwen3_5ForConditionalGeneration: kern_sglang.model" in runs["kern-llm", order]["models"]


# -- kern-llm puts its own class in the place of a model's ----------------------------------------------------

KERN_RELEASE = "0.5.22"


@cache
def kern() -> list[dict[str, Any]]:
    launch = {
        "argv": [*SERVER_MODEL, "example/model", "--tp", "4", "--ep-size", "4", FLAG],
        "gpu": "4xH200",
        "model_config": str(MODELS / "qwen3-30b-a3b-fp8"),
        "env": {"KERN_MANIFEST": "/nowhere/manifest.json", "KERN_ARCHITECTURE": "Qwen3MoeForCausalLM"},
    }
    other = {**launch, "env": {**launch["env"], "KERN_ARCHITECTURE": "LlamaForCausalLM"}}  # type: ignore[dict-item]
    with pytest.MonkeyPatch.context() as patch:
        usual, folder = preflight_cases.environment, str(unpacked("kern-llm"))

        def environment(release: str) -> dict[str, str]:
            env = usual(release)
            return env | {"PYTHONPATH": os.pathsep.join((env["PYTHONPATH"], folder))}

        patch.setattr(preflight_cases, "environment", environment)
        cases: list[dict[str, Any]] = [
            launch,
            launch | {"load_plugins": True},
            other | {"load_plugins": True},
        ]
        return preflight_cases.run(KERN_RELEASE, cases, cwd=ROOT)


def test_without_its_plugin_sglang_alone_is_judged_and_that_is_said() -> None:
    left_out = kern()[0]
    assert "FMS101" in {f["id"] for f in left_out["findings"]}
    assert any("kern-llm 0.3.1" in note and "--plugins" in note for note in left_out["notes"])


def test_a_plugin_that_takes_the_model_class_makes_its_runner_unknown() -> None:
    loaded = kern()[1]
    assert not [f for f in loaded["findings"] if f["severity"] != "info"], loaded["findings"]
    assert "FMS101" in {rule["id"] for rule in loaded["skipped"]}
    assert "the runner of the MoE layers" in " ".join(loaded["unknown"])
    row = next(row for row in loaded["flags"] if "fused-moe-sum" in row["flag"])
    assert row["effect"] == "unknown"


def test_a_plugin_that_takes_another_model_class_changes_nothing() -> None:
    assert "FMS101" in {f["id"] for f in kern()[2]["findings"]}

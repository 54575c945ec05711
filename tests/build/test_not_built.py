"""Launches that cannot be built: one sentence that says why and what to do, no error finding, no traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.launches.checks import MODELS, check_all
from tests.trees import tree

pytestmark = pytest.mark.live
RELEASE = "0.5.19"

BASE = json.loads((MODELS / "qwen3-30b-a3b" / "config.json").read_text(encoding="utf-8"))
OWN_CODE = {"auto_map": {"AutoModelForCausalLM": "modeling_own.OwnMoeForCausalLM"}}
#: What is changed in a good config, and a part of the sentence.
CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "an architecture that this SGLang does not know": (
        {"architectures": ["SomeNewMoeForCausalLM"]},
        "no model class SomeNewMoeForCausalLM (model type qwen3_moe)",
    ),
    "a model type that nobody knows": (
        {"architectures": ["SomeNewMoeForCausalLM"], "model_type": "some_new_moe"},
        "the model type some_new_moe is known here from its JSON alone",
    ),
    "a class that needs trust_remote_code": (
        {"architectures": ["OwnMoeForCausalLM"], **OWN_CODE},
        "a checkpoint's own code is not run",
    ),
    "quantization settings cut short": (
        {"quantization_config": {"quant_method": "fp8"}},
        "the quantization settings of this config.json are not whole",
    ),
    "a sub-config that is missing": (
        {"architectures": ["Qwen3VLMoeForConditionalGeneration"]},
        "vision_config",
    ),
}


def launch(model: str | Path) -> dict[str, Any]:
    argv = ["python", "-m", "sglang.launch_server", "--model-path", "some/model"]
    return {"argv": argv, "gpu": "1xH200", "build": True, "model": str(model)}


def is_one_sentence(text: str) -> bool:
    return bool(text) and "\n" not in text and "Traceback" not in text and len(text) < 400


def test_a_config_that_cannot_be_built_is_said_in_one_sentence(tmp_path: Path) -> None:
    launches = []
    for name, (change, _) in CONFIGS.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(BASE | change), encoding="utf-8")
        launches.append(launch(folder))
    for (name, (_, says)), report in zip(CONFIGS.items(), check_all(RELEASE, launches), strict=True):
        assert "error" not in report, (name, report)
        assert report["build"]["status"] == "not built", name
        assert is_one_sentence(report["build"]["reason"]), name
        assert says in report["build"]["reason"], (name, report["build"]["reason"])
        assert not [f for f in report["findings"] if f["id"].startswith("BLD")], name


def test_a_model_that_no_gpu_holds_does_not_fit(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(BASE | {"hidden_size": 10**13}), encoding="utf-8")
    (report,) = check_all(RELEASE, [launch(tmp_path)])
    assert [f["id"] for f in report["findings"] if f["severity"] == "error"] == ["BLD103"]


def _linked(source: Path, target: Path, *, without: str) -> None:
    target.mkdir()
    for entry in source.iterdir():
        if entry.name != without:
            (target / entry.name).symlink_to(entry)


def test_a_fork_whose_loader_differs_is_left_to_the_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tree(RELEASE) / "sglang"
    fork = tmp_path / "fork"
    fork.mkdir()
    _linked(real, fork / "sglang", without="srt")
    _linked(real / "srt", fork / "sglang" / "srt", without="model_loader")
    _linked(real / "srt" / "model_loader", fork / "sglang" / "srt" / "model_loader", without="loader.py")
    text = (real / "srt" / "model_loader" / "loader.py").read_text(encoding="utf-8")
    assert "_initialize_model" in text
    (fork / "sglang" / "srt" / "model_loader" / "loader.py").write_text(
        text.replace("_initialize_model", "_make_the_model"), encoding="utf-8"
    )
    monkeypatch.setenv("SGLANG_GUARDS_TREES", str(tmp_path))
    (report,) = check_all("fork", [launch("qwen3-30b-a3b")])
    assert report["build"]["status"] == "not built"
    assert report["build"]["reason"] == (
        "the model loader of this SGLang has no _initialize_model; its launches are judged by the rules alone"
    )


#: A fork on PyPI: `python tools/trees.py lsglang==1.6.5`.
FORK = "lsglang==1.6.5"


def test_an_unmodified_fork_is_judged_by_its_own_constructors() -> None:
    tree(FORK)
    at = launch("qwen3-30b-a3b")["argv"]
    # Its expert layers read the argument as it was typed.
    args = ["--tp", "8", "--chunked-prefill-size", "4096"]
    models = ("qwen3-30b-a3b", "qwen3-coder-480b-a35b-fp8")
    good, bad = check_all(
        FORK, [{"argv": [*at, *args], "gpu": "8xH200", "build": True, "model": model} for model in models]
    )
    assert good["target"]["distribution"] == "lsglang 1.6.5"
    assert good["build"]["status"] == "built"
    (layers,) = good["build"]["ranks"][0]["layers"]
    assert (layers["count"], layers["method"]) == (48, "UnquantizedFusedMoEMethod")
    assert bad["build"]["status"] == "refused"
    refusal = bad["build"]["ranks"][0]["refusal"]
    assert "= 320 is not divisible by weight quantization block_n = 128" in refusal["message"]
    assert refusal["where"].startswith("sglang/srt/layers/quantization/fp8.py:")

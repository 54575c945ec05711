from __future__ import annotations

from typing import Any

import pytest

from sglang_guards.launch.checkpoint import is_ignored, model_facts, quant_kind, quant_name


def moe(**more: Any) -> dict[str, Any]:
    return {"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 128, "num_experts_per_tok": 8, **more}


def test_experts_of_a_nested_config() -> None:
    facts = model_facts({"architectures": ["Wrapper"], "text_config": moe(hidden_size=4096)})
    assert facts["architecture"] == "Wrapper"
    assert (facts["num_experts"], facts["top_k"], facts["hidden_size"]) == (128, 8, 4096)
    assert facts["is_moe"] is True


@pytest.mark.parametrize(
    ("config", "experts", "top_k"),
    [
        ({"n_routed_experts": 256, "num_experts_per_tok": 8}, 256, 8),
        ({"num_local_experts": 8, "num_experts_per_tok": 2}, 8, 2),
        ({"moe_num_experts": [64, 64], "moe_k": 6}, 64, 6),
        ({"ffn_config": {"moe_num_experts": 16, "moe_top_k": 4}}, 16, 4),
    ],
)
def test_spellings_of_experts(config: dict[str, Any], experts: int, top_k: int) -> None:
    facts = model_facts(config)
    assert (facts["num_experts"], facts["top_k"]) == (experts, top_k)


def test_a_dense_model_has_no_experts() -> None:
    facts = model_facts({"architectures": ["LlamaForCausalLM"], "hidden_size": 4096})
    assert facts["is_moe"] is False
    assert "top_k" not in facts


@pytest.mark.parametrize(
    "broken", [{}, {"architectures": []}, {"num_experts": "many"}, {"text_config": None}]
)
def test_a_damaged_config_leaves_facts_out(broken: dict[str, Any]) -> None:
    facts = model_facts(broken)
    assert "architecture" not in facts
    assert facts["is_moe"] is False


@pytest.mark.parametrize(
    ("section", "name"),
    [
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "modelopt_fp4"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "modelopt_fp8"),
        ({}, None),
    ],
)
def test_quantization_names(section: dict[str, Any], name: str | None) -> None:
    assert quant_name(section) == name


def group(kind: str, bits: int, inputs: bool) -> dict[str, Any]:
    made: dict[str, Any] = {"weights": {"type": kind, "num_bits": bits}}
    if inputs:
        made["input_activations"] = {"type": kind, "num_bits": bits}
    return {"config_groups": {"group_0": made}}


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (group("float", 8, True), "ct_fp8"),
        (group("int", 8, True), "ct_int8"),
        (group("int", 4, False), "ct_wna16"),
        (group("float", 4, True), "ct_nvfp4"),
        ({}, None),
    ],
)
def test_compressed_tensors_kinds(config: dict[str, Any], kind: str | None) -> None:
    assert quant_kind("compressed-tensors", config) == kind


def test_modelopts_own_file_is_the_second_source() -> None:
    facts = model_facts(
        moe(), quant_file={"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}}
    )
    assert facts["quant"] == "modelopt_fp4"
    assert facts["quant_ignored"] == ["lm_head"]


@pytest.mark.parametrize(
    ("module", "pattern", "ignored"),
    [
        ("mtp.layers.0.mlp.experts.0.down_proj", "mtp.layers.0*", True),
        ("mtp.layers.0.mlp.experts.0.down_proj", "mtp.fc", False),
        ("model.layers.78.mlp.experts.0.down_proj", "model.layers.78", True),
        ("model.layers.7.mlp.experts.0.down_proj", "model.layers.78", False),
        ("model.layers.3.mlp.experts.0.up_proj", "re:.*experts.*", True),
        ("a", "re:(", False),
    ],
)
def test_ignored_modules(module: str, pattern: str, ignored: bool) -> None:
    assert is_ignored(module, [pattern]) is ignored

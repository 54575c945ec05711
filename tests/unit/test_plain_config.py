"""Configs of model types that transformers does not know, and what is said where they do not suffice."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_guards.preflight import model_types, plain_config
from sglang_guards.source.tree import Source

UNKNOWN = (
    "The checkpoint you are trying to load has model type `new_moe` "
    "but Transformers does not recognize this architecture."
)
FIELDS = {
    "hidden_size": 4096,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "n_routed_experts": 64,
    "rope_theta": 50000.0,
    "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096},
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "vision_config": {"hidden_size": 64, "model_type": "new_eye"},
    "text_config": {"hidden_size": 4096, "model_type": "llama", "num_attention_heads": 32},
}


def test_the_unknown_type_is_read_from_the_whole_chain() -> None:
    inner = ValueError(UNKNOWN)
    outer = RuntimeError("failed to load the config")
    outer.__cause__ = inner
    assert plain_config.unknown_type(outer) == "new_moe"
    assert plain_config.unknown_type(ValueError("no")) is None


def test_a_plain_config_has_the_fields_of_the_json() -> None:
    pytest.importorskip("transformers")
    config = plain_config.plain_class("new_moe")(**FIELDS)
    assert config.model_type == "new_moe"
    assert (config.hidden_size, config.n_routed_experts) == (4096, 64)
    assert config.quantization_config == FIELDS["quantization_config"]
    assert config.vision_config.hidden_size == 64
    assert config.text_config.model_type == "llama"
    assert config.rope_parameters["rope_theta"] == 50000.0
    with pytest.raises(AttributeError):
        _ = config.v_head_dim  # no default is made up


def test_transformers_makes_it_for_the_type(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(
        '{"model_type": "guards_test_moe", "architectures": ["NewMoe"], "num_experts": 8}', encoding="utf-8"
    )
    with pytest.raises(ValueError, match="guards_test_moe") as caught:
        transformers.AutoConfig.from_pretrained(str(tmp_path))
    assert plain_config.unknown_type(caught.value) == "guards_test_moe"
    plain_config.accept("guards_test_moe")
    config = transformers.AutoConfig.from_pretrained(str(tmp_path))
    assert (config.architectures, config.num_experts) == (["NewMoe"], 8)


def test_the_releases_that_read_a_type_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for release, text in {
        "0.5.11": "",
        "0.5.12": 'model_type = "new_moe"',
        "0.5.13": "model_type: str = 'new_moe'",
    }.items():
        folder = tmp_path / release / "sglang" / "srt" / "configs"
        folder.mkdir(parents=True)
        (folder / "new_moe.py").write_text(f"class C:\n    {text or 'pass'}\n", encoding="utf-8")
    monkeypatch.setenv("SGLANG_GUARDS_TREES", str(tmp_path))
    trouble = model_types.could_not("new_moe", "", Source(tmp_path / "0.5.11" / "sglang"))
    assert "new_moe" in trouble.message
    assert "0.5.12 to 0.5.13" in trouble.hint
    trouble = model_types.could_not("other_moe", "no field x", Source(tmp_path / "0.5.11" / "sglang"))
    assert "no field x" in trouble.message
    assert "transformers release" in trouble.hint

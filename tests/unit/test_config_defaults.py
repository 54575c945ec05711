"""Missing keys of a config.json are the config class's defaults; a dense model gets no experts by it."""

from __future__ import annotations

from typing import Any

import pytest

from sglang_guards.launch.config_defaults import filled

CLASS = {
    **{"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768},
    **{"hidden_size": 2048, "vocab_size": 9},
}


@pytest.mark.parametrize(
    ("shipped", "added"),
    [
        ({"num_experts_per_tok": 4}, {"num_experts": 128, "moe_intermediate_size": 768, "hidden_size": 2048}),
        ({"num_experts": 64, "hidden_size": 1}, {"num_experts_per_tok": 8, "moe_intermediate_size": 768}),
        (
            {"n_routed_experts": 64},
            {"num_experts_per_tok": 8, "moe_intermediate_size": 768, "hidden_size": 2048},
        ),
        ({"model_type": "qwen3_moe"}, {k: v for k, v in CLASS.items() if k != "vocab_size"}),
        ({"model_type": "qwen3_5"}, {"hidden_size": 2048}),
        ({"model_type": "x", "num_experts": 0}, {"hidden_size": 2048}),
    ],
)
def test_what_is_filled(shipped: dict[str, Any], added: dict[str, Any]) -> None:
    assert filled(shipped, CLASS) == {**shipped, **added}


def test_the_text_part_of_a_multimodal_config() -> None:
    shipped = {"text_config": {"num_experts": 64}, "model_type": "x"}
    loaded = {"text_config": CLASS, "hidden_size": 7}
    made = filled(shipped, loaded)
    assert made["text_config"]["num_experts_per_tok"] == 8
    assert "hidden_size" not in made
    assert filled(shipped, {}) == shipped

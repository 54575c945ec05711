"""FlashInfer all-reduce fusion in every release (audit part B)."""

from __future__ import annotations

import pytest

from tests.contract.tables import Table, answers, check_places, expected, from_release, registered, source
from tests.trees import RELEASES

TABLE: Table = {
    "fusion_flag_exists": {"0.5.9": True},
    "fusion_backend_flag_exists": {"0.5.9": False, "0.5.14": True},
    "fusion_enforce_disable_exists": {"0.5.9": False, "0.5.10": True},
    # the automatic switch
    "fusion_auto_checks_tp": {"0.5.9": False, "0.5.10": True},
    "fusion_auto_checks_nodes": {"0.5.9": True},
    "fusion_auto_checks_dp_attention": {"0.5.9": True},
    "fusion_auto_checks_h20": {"0.5.9": True, "0.5.13": False},
    "fusion_auto_checks_a2a": {"0.5.9": True},
    "fusion_auto_checks_pp": {"0.5.9": False},
    "fusion_auto_checks_ep": {"0.5.9": False},
    "fusion_auto_checks_deterministic": {"0.5.9": False},
    "fusion_multi_node_sm100": {"0.5.9": False, "0.5.14": True},
    "fusion_off_when_deterministic": {"0.5.9": False, "0.5.12": True},
    # hardware and groups
    "fusion_rejects_gpu": {"0.5.9": False, "0.5.14": True},
    "fusion_checks_nvlink_clique": {"0.5.9": False, "0.5.23": True},
    "fusion_passes_group": {"0.5.9": False, "0.5.12": True},
    "fusion_noop_under_dp_attention": {"0.5.9": True},
    # known defects: 0.5.9 and 0.5.10 reduce over the whole TP group; from 0.5.21 the EP and MoE-TP sums merge into one
    "fusion_hybrid_ep_reduces_moe_group": {"0.5.9": False, "0.5.11": True, "0.5.21": False},
    "fusion_hybrid_ep_guarded": {"0.5.9": False, "0.5.18": True},
    "fusion_guards_scattered_mlp": {"0.5.9": False, "0.5.13": True},
    "fusion_layer_boundary": {"0.5.9": False, "0.5.21": True},
    "fusion_pp_completes_sum": {"0.5.9": False, "0.5.21": True},
}

_0_5_9 = {
    "DeepseekV3ForCausalLM",
    "GptOssForCausalLM",
    "Glm4MoeForCausalLM",
    "Glm4MoeLiteForCausalLM",
    "Qwen3MoeForCausalLM",
    "KimiK25ForConditionalGeneration",
}
_0_5_10 = _0_5_9 | {"Qwen3_5MoeForConditionalGeneration", "Qwen3_5ForConditionalGeneration"}
_0_5_11 = _0_5_10 | {"DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM", "Qwen3NextForCausalLM"}
_0_5_12 = _0_5_11 | {"InternS2PreviewForConditionalGeneration"}
_0_5_13 = _0_5_12 | {"MistralLarge3ForCausalLM"}
_0_5_14 = _0_5_13 | {
    "Qwen3VLMoeForConditionalGeneration",
    "NemotronHForCausalLM",
    "NemotronHPuzzleForCausalLM",
}
_0_5_18 = _0_5_14 | {"DeepseekV4ForCausalLM"}
_0_5_20 = _0_5_18 | {"Qwen4ExpForConditionalGeneration", "NemotronH_Omni_Reasoning_V3"}
ARCHITECTURES = {
    "0.5.9": _0_5_9,
    "0.5.10": _0_5_10,
    "0.5.11": _0_5_11,
    "0.5.12": _0_5_12,
    "0.5.13": _0_5_13,
    "0.5.14": _0_5_14,
    "0.5.18": _0_5_18,
    "0.5.20": _0_5_20,
}


def test_every_probe_has_an_expectation() -> None:
    assert set(TABLE) | {"fusion_auto_architectures"} == registered(
        "allreduce_fusion", "allreduce_fusion_sums"
    )


@pytest.mark.parametrize("release", RELEASES)
def test_answers(release: str) -> None:
    assert answers(TABLE, source(release)) == expected(TABLE, release)


@pytest.mark.parametrize("release", RELEASES)
def test_listed_architectures(release: str) -> None:
    items = source(release).list("fusion_auto_architectures")
    assert items.values == tuple(sorted(from_release(ARCHITECTURES, release)))


@pytest.mark.parametrize("release", RELEASES)
def test_places_exist(release: str) -> None:
    tree = source(release)
    check_places({probe: tree.ask(probe) for probe in TABLE}, tree)
    check_places({"list": tree.list("fusion_auto_architectures")}, tree)


def test_a_broken_fusion_is_broken_or_guarded_but_not_both_unknown() -> None:
    """Hybrid EP is silently wrong exactly where one group is reduced over and nothing guards it."""
    wrong = [
        release
        for release in RELEASES
        if source(release).ask("fusion_hybrid_ep_reduces_moe_group").value
        and not source(release).ask("fusion_hybrid_ep_guarded").value
    ]
    assert (wrong[0], wrong[-1]) == ("0.5.11", "0.5.17")

"""Reported combinations: from which release to which each one is in the source."""

from __future__ import annotations

import pytest

from tests.contract.tables import Table, answers, check_places, expected, line_of, registered, source
from tests.trees import RELEASES

TABLE: Table = {
    "expert_block_check": {"0.5.9": True},
    "expert_block_padded_by_aiter": {"0.5.9": False, "0.5.11": True},
    "linear_block_check": {"0.5.9": True},
    "fp8_cutlass_without_runner": {"0.5.9": True, "0.5.20": False},
    # up to 0.5.10 AITER ran whatever runner was asked for, from 0.5.23 the shuffle looks at the runner
    "fp8_aiter_layout_for_any_runner": {"0.5.9": False, "0.5.11": True, "0.5.23": False},
    "mxfp8_experts_need_sm100": {"0.5.9": True},
    "fp4_experts_unknown_to_trtllm": {"0.5.9": False, "0.5.12": True},
    "quark_mxfp4_needs_aiter": {"0.5.9": False, "0.5.11": True},
    "mxfp4_has_triton_lora": {"0.5.9": None, "0.5.11": False},
    "lora_experts_know_ep": {"0.5.9": None, "0.5.10": False, "0.5.11": True},
    "virtual_experts_lose_up_half": {"0.5.9": None, "0.5.11": True, "0.5.23": False},
    "w4afp8_deepep_call_incomplete": {"0.5.9": False, "0.5.16": True, "0.5.18": False},
    "minimax_m2_names_routing": {"0.5.9": False},
    "mixed_chunk_spec_assertion": {"0.5.9": True, "0.5.19": False},
    "reduce_scatterv_sums": {"0.5.9": False, "0.5.11": True},
    "reduce_scatterv_needs_full_dp": {"0.5.9": None, "0.5.11": False, "0.5.17": True},
    "gpt_oss_sums_twice": {"0.5.9": False, "0.5.11": True, "0.5.20": False},
    "fused_expert_loader_knows_ep": {"0.5.9": False},
    "shared_expert_tp1_overcounted": {"0.5.9": False, "0.5.12": True, "0.5.21": False},
    "moe_sum_ignores_determinism": {"0.5.9": True, "0.5.14": False},
    "moe_tp_is_floor": {"0.5.9": True},
    "eagle3_told_by_algorithm": {"0.5.9": True},
    "tbo_refuses_enforced_fusion": {"0.5.9": False, "0.5.12": True, "0.5.14": False},
    "tbo_pads_request_ids": {"0.5.9": False, "0.5.14": True},
    "draft_follows_target_runner": {"0.5.9": False, "0.5.12": True},
    "fp8_experts_fall_back_to_marlin": {"0.5.9": False},
    "cutlass_maps_cover_all_routes": {"0.5.9": False, "0.5.23": True},
}


def test_every_probe_has_an_expectation() -> None:
    assert set(TABLE) == registered("moe_faults", "launch_faults")


@pytest.mark.parametrize("release", RELEASES)
def test_answers(release: str) -> None:
    tree = source(release)
    assert answers(TABLE, tree) == expected(TABLE, release)
    check_places({probe: tree.ask(probe) for probe in TABLE}, tree)


@pytest.mark.parametrize(
    ("probe", "release", "word"),
    [
        ("expert_block_check", "0.5.15", "% block_n"),
        ("linear_block_check", "0.5.15", "output_partition_size % block_n"),
        ("mixed_chunk_spec_assertion", "0.5.15", "is required for speculative decoding"),
        ("gpt_oss_sums_twice", "0.5.15", "if self.tp_size > 1"),
        ("cutlass_maps_cover_all_routes", "0.5.15", "prepare_moe_input("),
        ("w4afp8_deepep_call_incomplete", "0.5.16", "deepep_post_reorder_triton_kernel["),
        ("fp8_aiter_layout_for_any_runner", "0.5.15", "shuffle_weight"),
        ("shared_expert_tp1_overcounted", "0.5.15", "_shared_expert_tp1"),
        ("mxfp8_experts_need_sm100", "0.5.18", "requires SM100"),
    ],
)
def test_the_place_is_the_deciding_line(probe: str, release: str, word: str) -> None:
    tree = source(release)
    where = tree.ask(probe).where
    assert where is not None
    assert word in line_of(tree, where)

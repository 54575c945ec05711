"""Answers of the probes with arguments, for every release: where each kind of fault is and where it is repaired."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_guards.source import Source
from tests.contract.tables import source
from tests.trees import RELEASES

MOE, GLM, DSV4 = "Qwen3MoeForCausalLM", "GlmMoeDsaForCausalLM", "DeepseekV4ForCausalLM"
GLM5 = "Glm5NextForConditionalGeneration"
HYBRID = "Qwen3_5MoeForConditionalGeneration"
_H100_TILES = "E=256,N=128,device_name=NVIDIA_H100_80GB_HBM3,dtype=fp8_w8a8,block_shape=[128, 128].json"
ACCEPTED, MADE = "experts_runner_is_accepted", "experts_method_has_runner"


def _experts(kind: str, backend: str, a2a: str, sm: str = "90") -> dict[str, str]:
    return {"kind": kind, "backend": backend, "a2a": a2a, "sm": sm}


#: (probe, arguments, answer, the first and the last release that gives it; others answer the opposite or None).
ANSWERS: tuple[tuple[str, dict[str, str], bool, str, str], ...] = (
    ("topk_finds_placement", {}, True, "0.5.23", "0.5.23"),
    ("forward_names_placement", {"architecture": MOE}, False, "0.5.9", "0.5.22"),
    ("forward_names_placement", {"architecture": "GptOssForCausalLM"}, False, "0.5.9", "0.5.22"),
    ("replicas_same_on_all_ranks", {}, False, "0.5.9", "0.5.16"),
    ("tbo_strategy_exists", {"architecture": MOE}, True, "0.5.9", "0.5.23"),
    ("tbo_strategy_exists", {"architecture": "MiniMaxM2ForCausalLM"}, False, "0.5.9", "0.5.23"),
    ("tbo_strategy_exists", {"architecture": "Glm4MoeForCausalLM"}, False, "0.5.9", "0.5.23"),
    ("tbo_strategy_exists", {"architecture": GLM5}, False, "0.5.20", "0.5.23"),
    ("model_runs_tbo", {"architecture": MOE}, True, "0.5.9", "0.5.23"),
    ("model_runs_tbo", {"architecture": "Qwen3NextForCausalLM"}, False, "0.5.9", "0.5.23"),
    ("sbo_reads_overwritten_input", {"architecture": "DeepseekV3ForCausalLM"}, True, "0.5.9", "0.5.23"),
    ("sbo_reads_overwritten_input", {"architecture": GLM5}, True, "0.5.20", "0.5.23"),
    ("sbo_reads_overwritten_input", {"architecture": "Glm4MoeForCausalLM"}, False, "0.5.9", "0.5.23"),
    ("nvfp4_marlin_scales_twice", {}, True, "0.5.13", "0.5.16"),
    ("router_scales_when_asked", {"architecture": "DeepseekV3ForCausalLM"}, True, "0.5.9", "0.5.23"),
    ("deep_gemm_combine_drops_expert_zero", {}, True, "0.5.9", "0.5.12.post1"),
    (
        "attention_backend_takes",
        {"backend": "trtllm_mha", "mla": "True", "sm": "100"},
        False,
        "0.5.9",
        "0.5.23",
    ),
    ("attention_backend_takes", {"backend": "triton", "mla": "True", "sm": "90"}, True, "0.5.9", "0.5.23"),
    (
        "attention_backend_takes",
        {"backend": "trtllm_mla", "mla": "True", "sm": "100"},
        True,
        "0.5.9",
        "0.5.23",
    ),
    (
        "attention_backend_takes",
        {"backend": "trtllm_mla", "mla": "False", "sm": "100"},
        False,
        "0.5.9",
        "0.5.23",
    ),
    ("is_hybrid_gdn", {"architecture": HYBRID}, True, "0.5.9", "0.5.23"),
    ("is_hybrid_gdn", {"architecture": MOE}, False, "0.5.9", "0.5.23"),
    ("hybrid_gdn_takes", {"backend": "flashinfer", "sm": "120"}, True, "0.5.10", "0.5.23"),
    ("hybrid_gdn_takes", {"backend": "triton", "sm": "100"}, True, "0.5.9", "0.5.23"),
    ("draft_backend_exists", {"backend": "torch_native", "phase": "extend"}, False, "0.5.9", "0.5.23"),
    ("draft_backend_exists", {"backend": "triton", "phase": "decode"}, True, "0.5.9", "0.5.23"),
    ("torch_native_needs_extend_lengths", {}, True, "0.5.9", "0.5.23"),
    ("dsa_knows_sm120", {}, False, "0.5.9", "0.5.16"),
    ("tile_file_ships", {"file": _H100_TILES}, True, "0.5.9", "0.5.23"),
    ("tile_file_ships", {"file": "E=7,N=7,device_name=NVIDIA_H100_80GB_HBM3.json"}, False, "0.5.9", "0.5.23"),
    ("decode_node_keeps_draft_topk", {}, False, "0.5.15", "0.5.15"),
    ("stages_hand_over_topk", {}, False, "0.5.10", "0.5.13.post1"),
    ("fp8_scale_reads_unwritten_rows", {}, True, "0.5.9", "0.5.23"),
    ("fused_shared_expert_is_quantized", {}, False, "0.5.9", "0.5.14"),
    ("triton_attention_reads_own_stage", {}, False, "0.5.9", "0.5.17"),
    ("stage_reads_folded_residual", {"architecture": GLM5}, True, "0.5.20", "0.5.20"),
    ("fp8_experts_fall_back_to_marlin", {}, False, "0.5.9", "0.5.23"),
    ("decode_node_makes_draft_input", {"algorithm": "DFLASH"}, False, "0.5.15", "0.5.19"),
    ("decode_node_makes_draft_input", {"algorithm": "DSPARK"}, False, "0.5.16", "0.5.16"),
    ("model_hands_out_expert_weights", {"architecture": MOE}, True, "0.5.9", "0.5.23"),
    ("model_hands_out_expert_weights", {"architecture": GLM}, True, "0.5.9", "0.5.23"),
    ("model_hands_out_expert_weights", {"architecture": "MiniMaxM2ForCausalLM"}, False, "0.5.9", "0.5.23"),
    ("model_hands_out_expert_weights", {"architecture": HYBRID}, False, "0.5.9", "0.5.9"),
    ("experts_never_summed", {"architecture": DSV4}, True, "0.5.12", "0.5.12.post1"),
    ("experts_summed_twice", {"architecture": "Step3VLForConditionalGeneration"}, True, "0.5.11", "0.5.20"),
    (ACCEPTED, _experts("modelopt_fp4", "auto", "deepep", "100"), False, "0.5.11", "0.5.23"),
    (ACCEPTED, _experts("modelopt_fp4", "flashinfer_trtllm", "flashinfer", "100"), False, "0.5.9", "0.5.18"),
    (ACCEPTED, _experts("modelopt_fp4", "flashinfer_cutedsl", "deepep", "100"), True, "0.5.13", "0.5.23"),
    (ACCEPTED, _experts("fp4_in_fp8", "marlin", "deepep"), False, "0.5.12", "0.5.23"),
    (ACCEPTED, _experts("ct_wna16", "auto", "deepep"), False, "0.5.11", "0.5.23"),
    (ACCEPTED, _experts("fp8", "auto", "deepep"), True, "0.5.9", "0.5.23"),
    (ACCEPTED, _experts("unquantized", "flashinfer_trtllm", "deepep", "100"), False, "0.5.10", "0.5.23"),
    (MADE, _experts("mxfp4", "flashinfer_cutlass", "none"), False, "0.5.11", "0.5.23"),
    (MADE, _experts("fp4_in_fp8", "flashinfer_cutlass", "none"), False, "0.5.9", "0.5.19"),
    (MADE, _experts("fp8", "flashinfer_cutedsl", "none"), False, "0.5.9", "0.5.19"),
    (MADE, _experts("fp8", "marlin", "none"), False, "0.5.9", "0.5.23"),
    (MADE, _experts("fp8", "triton", "none"), True, "0.5.9", "0.5.23"),
    (MADE, _experts("modelopt_fp4", "cutlass", "none", "100"), False, "0.5.16", "0.5.23"),
)
_IDS = [f"{probe}-{'-'.join(arguments.values())}" for probe, arguments, *_ in ANSWERS]
#: Releases between which the list of `ANSWERS` says nothing: the answer there is None or of the other sign for a reason
#: of its own.
_OPEN = {
    "stage_reads_folded_residual",
    "decode_node_makes_draft_input",
    "experts_summed_twice",
    "experts_never_summed",
    "tbo_strategy_exists",
    "sbo_reads_overwritten_input",
    ACCEPTED,
    MADE,
}


@pytest.mark.parametrize(("probe", "arguments", "value", "first", "last"), ANSWERS, ids=_IDS)
def test_the_answer(probe: str, arguments: dict[str, str], value: bool, first: str, last: str) -> None:
    span = RELEASES[RELEASES.index(first) : RELEASES.index(last) + 1]
    for release in RELEASES:
        made = source(release).ask(probe, **arguments)
        if release in span:
            assert made.value is value, (release, made)
            assert made.where, release
        else:
            assert made.value is not value, (release, made)
            assert probe in _OPEN or made.value is not None, (release, made)


@pytest.mark.parametrize(("probe", "arguments"), [(a[0], a[1]) for a in ANSWERS], ids=_IDS)
def test_a_tree_without_the_files_answers_nothing(
    probe: str, arguments: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "sglang"
    (folder / "srt").mkdir(parents=True)
    assert Source(folder).ask(probe, **arguments).value is None


def test_answers_are_remembered_by_their_arguments() -> None:
    tree = source("0.5.15")
    one = tree.ask("hybrid_gdn_takes", backend="triton", sm="100")
    other = tree.ask("hybrid_gdn_takes", backend="fa3", sm="100")
    assert one.value is True
    assert other.value is False
    assert tree.ask("hybrid_gdn_takes", backend="triton", sm="100") is one

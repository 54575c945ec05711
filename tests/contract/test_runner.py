"""Which runner each kind of experts gets in every release (audit A.2 and A.8)."""

from __future__ import annotations

import pytest

from tests.contract.tables import Table, answers, check_places, expected, line_of, registered, source
from tests.trees import RELEASES

TABLE: Table = {
    # up to 0.5.19 FP8 experts get no runner at all under flashinfer_cutlass
    "fp8_cutlass_falls_back_to_triton": {"0.5.9": False, "0.5.20": True},
    "fp8_auto_may_be_aiter": {"0.5.9": False, "0.5.11": True},
    "unquant_deep_gemm": {"0.5.9": False, "0.5.12": True},
    "mxfp4_marlin": {"0.5.9": False, "0.5.12": True},
    "mxfp4_deep_gemm": {"0.5.9": False, "0.5.17": True},
    "modelopt_fp4_marlin": {"0.5.9": False, "0.5.13": True},
    "quark_fp8_aiter": {"0.5.9": False, "0.5.21": True},
    "ct_wna16_triton_on_cuda": {"0.5.9": False, "0.5.11": True},
    "ct_wna16_auto_triton_sm100": {"0.5.9": False, "0.5.19": True},
    "draft_runner_inherits_target": {"0.5.9": False, "0.5.12": True},
    # the block can fuse on CUDA from 0.5.14, but of its models only Qwen3-Next asks for it
    "qwen2_moe_fuses_shared_experts": {"0.5.9": False, "0.5.14": True},
    "qwen3_next_fuses_shared_experts_on_cuda": {"0.5.9": False, "0.5.14": True},
    "qwen3_5_fuses_shared_experts_on_cuda": {"0.5.9": False},
    # asked of the kernel that has FUSE_SUM_ALL_REDUCE
    "filter_expert_unconditional": {"0.5.9": None, "0.5.10": False, "0.5.23": True},
}


def test_every_probe_has_an_expectation() -> None:
    assert set(TABLE) == registered("moe_runner")


@pytest.mark.parametrize("release", RELEASES)
def test_answers(release: str) -> None:
    assert answers(TABLE, source(release)) == expected(TABLE, release)


@pytest.mark.parametrize("release", RELEASES)
def test_places_exist(release: str) -> None:
    tree = source(release)
    check_places({probe: tree.ask(probe) for probe in TABLE}, tree)


@pytest.mark.parametrize(
    ("release", "probe", "line"),
    [
        ("0.5.12", "mxfp4_marlin", "self.runner = MoeRunner("),
        ("0.5.20", "fp8_cutlass_falls_back_to_triton", "self.runner = MoeRunner("),
        ("0.5.23", "ct_wna16_auto_triton_sm100", "return CompressedTensorsWNA16TritonMoE("),
        ("0.5.15", "qwen3_next_fuses_shared_experts_on_cuda", "enable_cuda_shared_expert_fusion=True"),
        ("0.5.14", "draft_runner_inherits_target", "server_args.moe_runner_backend"),
    ],
)
def test_places_are_the_deciding_lines(release: str, probe: str, line: str) -> None:
    tree = source(release)
    assert line in line_of(tree, tree.ask(probe).where or "")

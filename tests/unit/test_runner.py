"""The runner table, row by row (quantization × backend × a2a × platform)."""

from __future__ import annotations

from typing import Any

import pytest

from sglang_guards.launch.moe_runner import Query, runner_of


def query(**changes: Any) -> Query:
    base: dict[str, Any] = {
        "backend": "auto",
        "kind": "unquantized",
        "a2a": "none",
        "platform": "cuda",
        "sm": 90,
        "aiter": False,
        "width": 256,
        "config": {},
    }
    return Query(**(base | changes))


def yes(probe: str) -> bool:
    return True


def no(probe: str) -> bool:
    return False


def unknown(probe: str) -> None:
    return None


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "triton"),
        ({"backend": "triton"}, "triton"),
        ({"backend": "marlin"}, "triton"),
        ({"backend": "flashinfer_trtllm"}, "flashinfer_trtllm"),
        ({"backend": "triton_kernel"}, "triton_kernel"),
        ({"kind": "fp8"}, "triton"),
        ({"kind": "fp8", "backend": "deep_gemm"}, "deep_gemm"),
        ({"kind": "w8a8_int8", "backend": "flashinfer_trtllm"}, "triton"),
        ({"kind": "modelopt_fp8"}, "triton"),
        ({"kind": "modelopt_fp8", "backend": "flashinfer_cutlass"}, "flashinfer_cutlass"),
        ({"kind": "gptq_marlin"}, "marlin"),
        ({"kind": "awq_marlin"}, "marlin"),
        ({"kind": "modelopt_fp4", "sm": 100}, "flashinfer_trtllm"),
        ({"kind": "modelopt_fp4", "sm": 90}, "marlin"),
        ({"kind": "mxfp4", "backend": "triton"}, "triton"),
        ({"kind": "mxfp4", "backend": "flashinfer_mxfp4"}, "flashinfer_mxfp4"),
        ({"kind": "mxfp4"}, None),
        ({"kind": None}, None),
        ({"kind": "something_new"}, None),
        ({"a2a": "deepep"}, "deepep"),
        ({"a2a": "megamoe"}, None),
        ({"a2a": "megamoe", "backend": "flashinfer_trtllm"}, "flashinfer_trtllm"),
        ({"platform": "cpu"}, "cpu"),
        ({"platform": "npu"}, "npu"),
        ({"platform": "hip"}, "triton"),
        ({"platform": "hip", "aiter": True}, "aiter"),
        ({"platform": "hip", "aiter": True, "width": 320}, None),
        ({"platform": "hip", "aiter": True, "backend": "triton"}, "triton"),
        ({"kind": "fp8", "config": {"expert_dtype": "fp4"}}, None),
        (
            {"kind": "fp8", "config": {"expert_dtype": "fp4"}, "backend": "flashinfer_mxfp4"},
            "flashinfer_mxfp4",
        ),
    ],
)
def test_runner(changes: dict[str, Any], name: str | None) -> None:
    made = runner_of(query(**changes), yes)
    assert made.name == name
    assert made.why


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "moe_wna16"},
        {"kind": "ct_wna16", "backend": "triton"},
        {"kind": "ct_wna16", "platform": "hip"},
        {"kind": "awq", "platform": "hip"},
    ],
)
def test_weight_only_triton(changes: dict[str, Any]) -> None:
    made = runner_of(query(**changes), yes)
    assert (made.name, made.weight_only) == ("triton", True)


def test_fp8_under_cutlass_depends_on_the_source() -> None:
    asked = query(kind="fp8", backend="flashinfer_cutlass")
    assert runner_of(asked, yes).name == "triton"
    assert runner_of(asked, no).name == "flashinfer_cutlass"
    assert runner_of(asked, unknown).name is None


def test_unquantized_deep_gemm_depends_on_the_source() -> None:
    asked = query(backend="deep_gemm")
    assert runner_of(asked, yes).name == "deep_gemm"
    assert runner_of(asked, no).name == "triton"
    assert runner_of(asked, unknown).name is None


@pytest.mark.parametrize(("group", "name"), [(32, "flashinfer_trtllm"), (128, "marlin"), (None, "marlin")])
def test_int4_experts_in_flashinfers_kernel(group: int | None, name: str) -> None:
    made = runner_of(query(kind="ct_wna16", backend="flashinfer_trtllm", group=group), yes)
    assert (made.name, made.weight_only) == (name, True)

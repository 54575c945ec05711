"""Changes that are tried for what SGLang's constructors refuse."""

from __future__ import annotations

from typing import Any

import pytest

from sglang_guards.launch.facts import Fact, Launch
from sglang_guards.preflight import build_fixes

ARGS = {
    "tp_size": 8, "ep_size": 1, "moe_runner_backend": "marlin", "moe_a2a_backend": "deepep",
    "attention_backend": "flashinfer", "mem_fraction_static": 0.8, "enable_two_batch_overlap": True,
}  # fmt: skip


def launch(message: str) -> Launch:
    facts = {f"args.{name}": Fact(value, "given") for name, value in ARGS.items()}
    facts["build.ranks"] = Fact([{"refusal": {"message": message, "when": "build"}}], "built")
    return Launch(facts)


@pytest.mark.parametrize(
    ("message", "first"),
    [
        ("The output_size of gate's and up's weight = 320 is not divisible by block_n = 128", {"ep_size": 2}),
        (
            "Weight output_partition_size = 576 is not divisible by weight quantization block_n",
            {"tp_size": 4},
        ),
        ("Runner backend MARLIN requires a fused func for a2a backend deepep", {"moe_runner_backend": None}),
        (
            "Only {'fa4', 'triton', 'trtllm_mha'} backends are supported on Blackwell GPUs",
            {"attention_backend": "trtllm_mha"},
        ),
        ("EAGLE is not supported in decode attention backend torch_native", {"attention_backend": None}),
        ("Loaded weights leave no GPU memory for the KV cache under", {"mem_fraction_static": 0.9}),
        ("something that nobody has seen", None),
    ],
)
def test_the_likeliest_change_comes_first(message: str, first: dict[str, Any] | None) -> None:
    found = build_fixes.candidates(launch(message), "BLD101")
    assert (dict(found[0].set) if found else None) == first
    assert len(found) <= build_fixes.MOST


def test_what_is_set_already_is_not_tried() -> None:
    found = build_fixes.candidates(launch("Only {'flashinfer', 'triton'} backends are supported"), "BLD101")
    assert [dict(fix.set) for fix in found] == [{"attention_backend": "triton"}]


def test_a_missing_runner_is_left_to_sglang() -> None:
    found = build_fixes.candidates(launch(""), "BLD102")
    assert dict(found[0].set) == {"moe_runner_backend": None}

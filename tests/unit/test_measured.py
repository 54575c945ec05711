"""Figures that FMS301 prints: of this machine first, else of the shipped device, else none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sglang_guards import source
from sglang_guards.judge import judge
from sglang_guards.launch.facts import Fact, Launch
from sglang_guards.launch.measurements import (
    faster_runner,
    runners_were_measured,
    shape_key,
    shape_keys,
    told,
)
from sglang_guards.launch.profile import Profile, save_profile
from sglang_guards.settings import Settings
from sglang_guards.source.fingerprint import fingerprint
from tests.trees import tree


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def launch(**changes: Any) -> Launch:
    values: dict[str, Any] = {
        "args.enable_fused_moe_sum_all_reduce": True,
        "args.tp_size": 4,
        "args.ep_size": 1,
        "args.moe_dp_size": 1,
        "args.moe_runner_backend": "auto",
        "args.moe_a2a_backend": "none",
        "args.dtype": "auto",
        "model.is_moe": True,
        "model.num_experts": 256,
        "model.top_k": 8,
        "model.moe_intermediate_size": 1024,
        "model.hidden_size": 3072,
        "model.quant_kind": "fp8",
        "model.dtype": "bfloat16",
        "draft_model.exists": False,
        "lora.enabled": False,
        "gpu.platform": "cuda",
        "gpu.name": "NVIDIA H200",
        "gpu.sm": 90,
    } | changes
    return Launch({k: Fact(v, "given") for k, v in values.items()}, source=source.find(tree("0.5.15")))


def profile(made: Launch, ratios: dict[int, float], **changes: Any) -> Profile:
    assert made.source is not None
    values: dict[str, Any] = {
        "device": "NVIDIA H200",
        "sm": 90,
        "sglang": "0.5.15",
        "fingerprint": fingerprint(made.source),
        "shape": shape_key(made),
        "measured": "2026-11-29",
        "ratios": ratios,
    }
    return Profile(**(values | changes))


def fires(made: Launch) -> bool:
    return "FMS301" in {finding.id for finding in judge(made, Settings()).findings}


def test_the_shape_is_one_ranks_shard() -> None:
    assert shape_key(launch()) == "E256-N256-H3072-K8-fp8"
    assert shape_key(launch(**{"args.ep_size": 4})) == "E64-N1024-H3072-K8-fp8"


def test_a_fused_shared_expert_is_looked_for_too() -> None:
    made = launch(
        **{
            "model.num_experts": 160,
            "model.num_shared_experts": 1,
            "model.moe_intermediate_size": 1536,
            "model.hidden_size": 5120,
            "model.quant_kind": "unquantized",
        }
    )
    assert shape_keys(made)[1] == "E161-N384-H5120-K9-bf16"
    assert told(made).text.startswith("measured for this shape on one NVIDIA H200")
    assert (
        len(shape_keys(launch(**{"args.disable_shared_experts_fusion": True, "model.num_shared_experts": 1})))
        == 1
    )


def test_shipped_results_name_their_device() -> None:
    assert "on one NVIDIA H200" in told(launch()).text
    assert (
        "not measured on this GPU (SM120)"
        in told(launch(**{"gpu.name": "NVIDIA RTX PRO 6000", "gpu.sm": 120})).text
    )


def test_an_unmeasured_shape_says_so() -> None:
    assert told(launch(**{"model.hidden_size": 1000})).text.startswith("we did not measure this shape")


def test_this_machines_profile_comes_first() -> None:
    made = launch()
    save_profile(profile(made, {64: 0.9, 4096: 0.5}))
    assert (
        "this machine's NVIDIA H200 (2026-11-29): 0.50 of the default's speed at 4096 tokens"
        in told(made).text
    )
    assert fires(made)


def test_a_profile_without_a_loss_silences_the_rule() -> None:
    made = launch()
    save_profile(profile(made, {64: 1.01, 4096: 1.1}))
    assert not fires(made)


@pytest.mark.parametrize("other", [{"device": "NVIDIA B200"}, {"fingerprint": "0" * 12}])
def test_a_profile_of_another_device_or_source_is_not_used(other: dict[str, str]) -> None:
    made = launch()
    save_profile(profile(made, {64: 1.01, 4096: 1.1}, **other))
    assert fires(made)


QWEN3_235B = {"model.num_experts": 128, "model.moe_intermediate_size": 1536, "model.hidden_size": 4096}


def test_a_faster_runner_comes_from_the_shipped_results_of_this_gpu_and_release() -> None:
    found = faster_runner(launch(**QWEN3_235B))
    assert found is not None
    assert found.runner == "deep_gemm"
    assert "one NVIDIA H200 with SGLang 0.5.15" in found.text
    assert faster_runner(launch(**QWEN3_235B, **{"gpu.name": "NVIDIA H100 80GB HBM3"})) is None
    assert faster_runner(launch()) is None, "measured, and no runner is 3 % faster over the prefill sizes"
    assert runners_were_measured(launch()), "and so the table does not say that nobody did"
    assert faster_runner(launch(**{"model.hidden_size": 5120})) is None, "nobody measured it"
    assert not runners_were_measured(launch(**{"model.hidden_size": 5120}))


def test_a_profile_of_this_machine_says_which_runner_is_faster(cache: Path) -> None:
    made = launch(**QWEN3_235B)
    cutlass = {64: 0.9, 2048: 1.2, 8192: 1.3}
    save_profile(profile(made, {64: 0.9, 2048: 0.8, 8192: 0.7}, runners={"cutlass": cutlass}))
    found = faster_runner(made)
    assert found is not None
    assert found.runner == "cutlass"
    assert "this machine's NVIDIA H200" in found.text
    assert "×1.25" in found.text
    assert "×0.90 at decode sizes" in found.text
    save_profile(profile(made, {64: 0.9, 2048: 0.8, 8192: 0.7}, runners={"cutlass": {2048: 1.0}}))
    assert faster_runner(made) is None, "this machine's own profile outranks the shipped results"


def test_the_fix_of_the_slow_flag_names_the_faster_runner() -> None:
    def fix(made: Launch) -> str:
        found = next(f for f in judge(made, Settings()).findings if f.id == "FMS301")
        assert found.fix is not None
        return found.fix.text

    assert "--moe-runner-backend deep_gemm" in fix(launch(**QWEN3_235B))
    assert "--moe-runner-backend" not in fix(launch())

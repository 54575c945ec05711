"""The validator inside real SGLang of every shape: attached by SGLang's plugin loader, run by check_server_args."""

from __future__ import annotations

from typing import Any

import pytest
from packaging.version import Version

from tests.live.runs import FLAG, QWEN3, hook_answers
from tests.trees import PLUGIN_RELEASES, running

RELEASES = running("hook", PLUGIN_RELEASES)
BASE = ["--model-path", QWEN3, "--tp", "4"]
DETERMINISTIC = [*BASE, FLAG, "--enable-deterministic-inference"]

BOTH = {"SGLANG_PLUGINS": "sglang_guards,replaces_check"}

SCENARIOS: dict[str, dict[str, Any]] = {
    "good": {"argv": BASE, "gpu": "4xH100"},
    "refused": {"argv": DETERMINISTIC, "gpu": "4xH100"},
    "refused-ep": {"argv": [*BASE, "--ep-size", "4", FLAG], "gpu": "4xH100"},
    "warn": {"argv": DETERMINISTIC, "gpu": "4xH100", "env": {"SGLANG_GUARDS": "warn"}},
    "fix": {"argv": DETERMINISTIC, "gpu": "4xH100", "env": {"SGLANG_GUARDS": "fix"}},
    "fix-fusion": {
        "argv": ["--model-path", QWEN3, "--tp", "8", "--ep-size", "2", FLAG],
        "gpu": "8xH200",
        "env": {"SGLANG_GUARDS": "fix"},
        "publish": True,
    },
    "ignored": {
        "argv": DETERMINISTIC,
        "gpu": "4xH100",
        "env": {"SGLANG_GUARDS_IGNORE": "FMS104=measured by us; ARF104=0.5.11 leaves the fusion on"},
    },
    "off": {"argv": DETERMINISTIC, "gpu": "4xH100", "env": {"SGLANG_GUARDS": "off"}},
    "sm100": {"argv": [*BASE, FLAG], "gpu": "4xB200"},
    "sm120": {"argv": [*BASE, FLAG], "gpu": "4xRTX-PRO-6000"},
    "hip": {"argv": [*BASE, FLAG], "gpu": "4xMI300X"},
    "beside": {"argv": DETERMINISTIC, "gpu": "4xH100", "beside": True, "env": BOTH},
    "beside-good": {"argv": BASE, "gpu": "4xH100", "beside": True, "env": BOTH},
    "twice": {"argv": [*BASE, FLAG], "gpu": "4xH100", "times": 2},
}


@pytest.fixture(params=RELEASES)
def run(request: pytest.FixtureRequest) -> dict[str, dict[str, Any]]:
    return hook_answers(request.param)["hook"] | {"release": request.param}


def said(answer: dict[str, Any]) -> str:
    return "\n".join(answer["log"]) + "\n" + answer["text"]


def test_a_good_launch_passes_with_one_armed_line(run: dict[str, Any]) -> None:
    answer = run["good"]
    assert answer["raised"] is None, answer
    armed = [line for line in answer["log"] if " armed (" in line]
    assert len(armed) == 1
    assert f"SGLang {run['release']}" in armed[0]
    assert not [line for line in answer["log"] if "could not" in line or "not active" in line]


def test_an_error_refuses_with_our_text_last(run: dict[str, Any]) -> None:
    answer = run["refused"]
    assert answer["raised"] == "LaunchRefused"
    assert answer["is_value_error"]
    assert "FMS104" in answer["text"]
    assert answer["text"].rstrip().splitlines()[-1].startswith("FAIL")


def test_expert_parallelism_follows_the_kernel(run: dict[str, Any]) -> None:
    refused = run["refused-ep"]["raised"] == "LaunchRefused" and "FMS101" in run["refused-ep"]["text"]
    assert refused == (run["release"] != "0.5.23")


def test_warn_mode_lets_it_pass_and_says_so(run: dict[str, Any]) -> None:
    assert run["warn"]["raised"] is None
    assert "FMS104" in said(run["warn"])
    assert run["warn"]["flag"] is True


def test_fix_mode_switches_the_flag_off_for_the_workers_too(run: dict[str, Any]) -> None:
    answer = run["fix"]
    assert answer["raised"] is None, answer
    assert answer["flag"] is False
    assert answer["worker_flag"] is False
    assert "enable_fused_moe_sum_all_reduce True -> False" in said(answer)


def test_fix_mode_switches_an_automatic_fusion_off_and_sglang_publishes_it(run: dict[str, Any]) -> None:
    answer = run["fix-fusion"]
    assert answer["raised"] is None, answer
    broken = Version(run["release"]) < Version("0.5.18")  # later releases guard the hybrid split themselves
    assert ("fix [ARF102]" in said(answer)) == broken
    assert bool(answer["fusion"]) is not broken


def test_ignore_with_a_reason(run: dict[str, Any]) -> None:
    assert run["ignored"]["raised"] is None
    assert "measured by us" in said(run["ignored"])


def test_off_is_off(run: dict[str, Any]) -> None:
    assert run["off"]["raised"] is None
    assert run["off"]["flag"] is True
    assert not [line for line in run["off"]["log"] if "armed" in line]


def test_gpu_kinds(run: dict[str, Any]) -> None:
    assert "FMS201" in said(run["sm100"]), "Qwen3-MoE resolves to flashinfer_trtllm on SM100"
    assert "flashinfer_trtllm" in said(run["sm100"])
    assert "FMS301" in said(run["sm120"])
    assert run["hip"]["raised"] == "LaunchRefused"
    assert "FMS102" in run["hip"]["text"]


def test_a_second_validation_says_nothing_new(run: dict[str, Any]) -> None:
    assert len([line for line in run["twice"]["log"] if " armed (" in line]) == 1


def test_a_plugin_that_replaces_the_method_is_wrapped(run: dict[str, Any]) -> None:
    assert run["beside"]["raised"] == "LaunchRefused"
    assert run["beside-good"]["raised"] is None
    assert run["beside-good"]["replaced"]
    assert "armed" in said(run["beside-good"])

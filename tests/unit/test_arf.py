"""Each all-reduce-fusion rule on a launch that it must speak about, and on near misses."""

from __future__ import annotations

from typing import Any

import pytest

from sglang_guards.judge import judge
from sglang_guards.report.model import Report, Severity
from sglang_guards.rules import all_rules
from sglang_guards.settings import Settings
from tests.unit.arf_launches import launch

ARF = tuple(rule for rule in all_rules() if rule.id.startswith("ARF"))
SPEC: dict[str, Any] = {"speculative_algorithm": "EAGLE"}
NANO = {"hidden_size": 2688}

#: rule, severity, then the launch: positional and keyword arguments of `launch`.
FIRES: list[tuple[str, str, tuple[Any, ...], dict[str, Any]]] = [
    ("ARF101", "error", ("0.5.15", "RTX"), {"fusion": "on"}),
    ("ARF101", "error", ("0.5.14", "L40S"), {"fusion": "trtllm"}),
    ("ARF101", "warning", ("0.5.13", "RTX"), {"fusion": "on"}),
    ("ARF101", "warning", ("0.5.15", "MI300X"), {"fusion": "on"}),
    ("ARF101", "error", ("0.5.15", "H200"), {"fusion": "on", "nnodes": 2}),
    ("ARF101", "error", ("0.5.15", "B200"), {"fusion": "trtllm", "nnodes": 2}),
    ("ARF101", "error", ("0.5.21", "H200"), {"fusion": "cutedsl"}),
    ("ARF102", "error", ("0.5.11",), {"fusion": "on", "given": False, "tp_size": 8, "ep_size": 2}),
    ("ARF102", "error", ("0.5.17", "B200"), {"fusion": "on", "tp_size": 8, "ep_size": 4}),
    ("ARF103", "warning", ("0.5.13",), {"fusion": "on", "pp_size": 2}),
    ("ARF103", "warning", ("0.5.20", "H200", "DeepseekV3ForCausalLM"), {"fusion": "on", "pp_size": 2}),
    (
        "ARF104",
        "error",
        ("0.5.11",),
        {"fusion": "on", "given": False, "enable_deterministic_inference": True},
    ),
    ("ARF104", "error", ("0.5.10",), {"fusion": "on", "rl_on_policy_target": "fsdp"}),
    ("ARF105", "warning", ("0.5.15", "H200", "BailingMoeV2_5ForCausalLM"), {"fusion": "on"}),
    ("ARF105", "info", ("0.5.15", "H200", "Qwen3NextForCausalLM"), {"fusion": "on", "given": False}),
    ("ARF201", "warning", ("0.5.15",), {"fusion": "on", "enable_dp_attention": True}),
    ("ARF201", "warning", ("0.5.22",), {"fusion": "on", "attn_dp_size": 4}),
    (
        "ARF202",
        "warning",
        ("0.5.20", "B300", "GlmMoeDsaForCausalLM"),
        {"fusion": "on", "given": False, **SPEC},
    ),
    ("ARF203", "warning", ("0.5.15", "B200"), {"fusion": "on", "given": False, "nnodes": 2}),
    ("ARF203", "info", ("0.5.15", "GB200"), {"fusion": "on", "given": False, "nnodes": 2}),
    (
        "ARF204",
        "warning",
        ("0.5.15",),
        {
            "fusion": "on",
            "packages": {"flashinfer-python": "0.6.12", "flashinfer-jit-cache": "0.6.11.post1+cu130"},
        },
    ),
    ("ARF205", "warning", ("0.5.12", "H20"), {"fusion": "on"}),
    (
        "ARF206",
        "warning",
        ("0.5.14", "B300", "GlmMoeDsaForCausalLM"),
        {"fusion": "on", "given": False, "model": {"quant": "modelopt_fp4"}, **SPEC},
    ),
    (
        "ARF207",
        "warning",
        ("0.5.14", "B200", "GlmMoeDsaForCausalLM"),
        {"fusion": "on", "cuda_graph_backend_prefill": "breakable", **SPEC},
    ),
    (
        "ARF208",
        "warning",
        ("0.5.16", "H100", "NemotronHForCausalLM"),
        {"fusion": "on", "given": False, "model": NANO},
    ),
    (
        "ARF209",
        "warning",
        ("0.5.11",),
        {"fusion": "on", "pp_size": 2, "packages": {"flashinfer-python": "0.6.11"}},
    ),
    (
        "ARF210",
        "info",
        ("0.5.13", "H200", "GptOssForCausalLM"),
        {"fusion": "on", "speculative_algorithm": "EAGLE3"},
    ),
    ("ARF211", "warning", ("0.5.15", "H200NVL"), {"fusion": "on", "given": False}),
    ("ARF301", "info", ("0.5.15", "H200", "DeepseekV2ForCausalLM"), {}),
]

QUIET: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("ARF101", ("0.5.15", "B200"), {"fusion": "on"}),
    ("ARF101", ("0.5.15", "RTX"), {"fusion": "on", "tp_size": 1}),
    ("ARF101", ("0.5.15", "B200"), {"fusion": "mnnvl", "nnodes": 2}),
    ("ARF101", ("0.5.21", "B200"), {"fusion": "cutedsl"}),
    ("ARF102", ("0.5.10",), {"fusion": "on", "tp_size": 8, "ep_size": 2}),  # reduces over the whole group
    ("ARF102", ("0.5.18",), {"fusion": "on", "tp_size": 8, "ep_size": 2}),  # guarded
    ("ARF102", ("0.5.15",), {"fusion": "on", "tp_size": 8, "ep_size": 8}),
    ("ARF102", ("0.5.15", "RTX"), {"fusion": "on", "tp_size": 8, "ep_size": 2}),  # no kernel, nothing fused
    ("ARF102", ("0.5.15", "H200", "Qwen2MoeForCausalLM"), {"fusion": "on", "tp_size": 8, "ep_size": 2}),
    ("ARF103", ("0.5.14",), {"fusion": "on", "pp_size": 2}),  # Qwen2MoeModel completes the sum
    ("ARF103", ("0.5.21", "H200", "DeepseekV3ForCausalLM"), {"fusion": "on", "pp_size": 2}),
    ("ARF104", ("0.5.12",), {"fusion": "on", "enable_deterministic_inference": True}),
    ("ARF104", ("0.5.11",), {"fusion": "on"}),
    ("ARF105", ("0.5.21", "H200", "Qwen3NextForCausalLM"), {"fusion": "on"}),
    ("ARF105", ("0.5.15", "H200", "Qwen3_5MoeForConditionalGeneration"), {"fusion": "on"}),
    ("ARF201", ("0.5.15",), {"fusion": "on"}),
    ("ARF202", ("0.5.20", "B200", "GlmMoeDsaForCausalLM"), {"fusion": "on", **SPEC}),
    ("ARF202", ("0.5.20", "B300", "GlmMoeDsaForCausalLM"), {"fusion": "trtllm", **SPEC}),
    ("ARF202", ("0.5.13", "B300", "GlmMoeDsaForCausalLM"), {"fusion": "on", **SPEC}),  # no mnnvl yet
    ("ARF203", ("0.5.23", "B200"), {"fusion": "on", "nnodes": 2}),  # checks the clique
    ("ARF203", ("0.5.15", "B200"), {"fusion": "on"}),
    (
        "ARF204",
        ("0.5.15",),
        {"fusion": "on", "packages": {"flashinfer-python": "0.6.12", "flashinfer-jit-cache": "0.6.12+cu130"}},
    ),
    ("ARF204", ("0.5.15",), {"fusion": "on"}),
    ("ARF205", ("0.5.13", "H20"), {"fusion": "on"}),
    ("ARF205", ("0.5.12", "H200"), {"fusion": "on"}),
    ("ARF206", ("0.5.16", "B300"), {"fusion": "on", "model": {"quant": "modelopt_fp4"}, **SPEC}),
    ("ARF206", ("0.5.14", "B300"), {"fusion": "on", "model": {"quant": "fp8"}, **SPEC}),
    ("ARF207", ("0.5.15", "B200"), {"fusion": "on", "cuda_graph_backend_prefill": "breakable", **SPEC}),
    ("ARF208", ("0.5.17", "H100", "NemotronHForCausalLM"), {"fusion": "on", "model": NANO}),
    ("ARF208", ("0.5.16", "B200", "NemotronHForCausalLM"), {"fusion": "on", "model": NANO}),
    ("ARF208", ("0.5.16", "H100", "NemotronHForCausalLM"), {"fusion": "on", "model": {"hidden_size": 4096}}),
    ("ARF209", ("0.5.12",), {"fusion": "on", "pp_size": 2, "packages": {"flashinfer-python": "0.6.11"}}),
    (
        "ARF210",
        ("0.5.15", "H200", "DeepseekV3ForCausalLM"),
        {"fusion": "on", "speculative_algorithm": "EAGLE3"},
    ),
    ("ARF211", ("0.5.15", "H200"), {"fusion": "on"}),
    ("ARF301", ("0.5.15", "H200", "DeepseekV3ForCausalLM"), {}),  # SGLang's own list decides
    ("ARF301", ("0.5.15", "H200", "DeepseekV2ForCausalLM"), {"fusion": "on"}),
]


def report_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Report:
    report = judge(launch(*args, **kwargs), Settings(), ARF)
    assert not report.notes
    return report


@pytest.mark.parametrize(("rule_id", "severity", "args", "kwargs"), FIRES)
def test_fires(rule_id: str, severity: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    found = [f for f in report_of(args, kwargs).findings if f.id == rule_id]
    assert len(found) == 1
    assert found[0].severity is Severity(severity)
    assert all((found[0].flags, found[0].cause, found[0].impact))
    assert found[0].fix is not None
    assert found[0].evidence


@pytest.mark.parametrize(("rule_id", "args", "kwargs"), QUIET)
def test_near_miss(rule_id: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    report = report_of(args, kwargs)
    assert rule_id not in {f.id for f in report.findings}
    assert rule_id not in {s.id for s in report.skipped}, "quiet must mean decided, not skipped"


def test_every_rule_is_tried_both_ways() -> None:
    by_resolution = {"ARF106"}  # needs the checkpoint's dense layers: tests/launches/rules/arf106-*.toml
    tried = {rule.id for rule in ARF} - by_resolution
    assert {case[0] for case in FIRES} == {case[0] for case in QUIET} == tried


def test_errors_are_fixed_by_switching_fusion_off() -> None:
    """With fusion off in the facts no error is left, whoever had set it."""
    for rule_id, severity, args, kwargs in FIRES:
        if severity == "error":
            off = report_of(args, {**kwargs, "fusion": None})
            assert not off.errors, rule_id


def test_what_sglang_sets_by_itself_is_forbidden_rather_than_removed() -> None:
    kwargs: dict[str, Any] = {"fusion": "on", "given": False, "tp_size": 8, "ep_size": 2}
    (finding,) = report_of(("0.5.15",), kwargs).errors
    assert finding.fix is not None
    assert finding.fix.set == {"enforce_disable_flashinfer_allreduce_fusion": True}
    assert finding.flags[0] == "--flashinfer-allreduce-fusion-backend auto (set by SGLang)"

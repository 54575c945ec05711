"""The extended auto-enable list: what it switches on, and every condition that leaves it off."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from sglang_guards import source as engine
from sglang_guards.hook import auto_enable
from sglang_guards.launch.facts import Launch
from sglang_guards.launch.fusion_auto_enable import OWN_DECODER, SAME_DECODER, decide
from sglang_guards.source.models import fusion_contract
from tests.trees import RELEASES, tree
from tests.unit.arf_launches import launch, source

ARCH = "DeepseekV2ForCausalLM"


@pytest.mark.parametrize("gpu", ["H200", "B200", "B300", "GB200"])
@pytest.mark.parametrize("release", ["0.5.11", "0.5.14", "0.5.15", "0.5.20", "0.5.23"])
def test_a_candidate_is_switched_on(release: str, gpu: str) -> None:
    decision = decide(launch(release, gpu, ARCH))
    assert decision.acts, decision.reason
    expected: tuple[str, object] = ("enable_flashinfer_allreduce_fusion", True)
    if RELEASES.index(release) >= RELEASES.index("0.5.14"):
        expected = ("flashinfer_allreduce_fusion_backend", "auto")
    assert (decision.field, decision.value) == expected
    assert "DeepseekV2DecoderLayer" in decision.reason
    assert decision.where.startswith("sglang/srt/models/deepseek_v2.py:")


#: Every condition that leaves it off, with a word of the reason.
LEFT_OFF: list[tuple[str, dict[str, Any], str]] = [
    ("on already", {"fusion": "on", "given": False}, "already"),
    ("forbidden", {"enforce_disable_flashinfer_allreduce_fusion": True}, "enforce-disable"),
    ("TP 1", {"tp_size": 1}, "TP is 1"),
    ("two nodes", {"nnodes": 2}, "node"),
    ("DP attention", {"enable_dp_attention": True}, "data-parallel"),
    ("DP attention, new field", {"attn_dp_size": 2}, "data-parallel"),
    ("DeepEP", {"moe_a2a_backend": "deepep"}, "deepep"),
    ("hybrid EP", {"tp_size": 8, "ep_size": 2}, "EP 2 within TP 8"),
    ("PP", {"pp_size": 2}, "pipeline"),
    ("deterministic", {"enable_deterministic_inference": True}, "deterministic"),
    ("on-policy", {"rl_on_policy_target": "fsdp"}, "deterministic"),
    ("context parallel", {"attn_cp_size": 2}, "context parallelism"),
    ("prefill CP", {"enable_prefill_cp": True}, "not reviewed"),
    ("pdmux", {"enable_pdmux": True}, "not reviewed"),
    ("EAGLE3", {"speculative_algorithm": "EAGLE3"}, "EAGLE3"),
    ("shared experts", {"env": {"SGLANG_SHARED_EXPERT_TP1": "1"}}, "SGLANG_SHARED_EXPERT_TP1"),
    (
        "FlashInfer",
        {"packages": {"flashinfer-python": "0.6.12", "flashinfer-cubin": "0.6.11"}},
        "different versions",
    ),
]


@pytest.mark.parametrize(
    ("args", "word"), [case[1:] for case in LEFT_OFF], ids=[case[0] for case in LEFT_OFF]
)
@pytest.mark.parametrize("release", ["0.5.11", "0.5.15", "0.5.23"])
def test_a_condition_leaves_it_off(release: str, args: dict[str, Any], word: str) -> None:
    decision = decide(launch(release, "H200", ARCH, **args))
    assert not decision.acts
    assert word in decision.reason


@pytest.mark.parametrize(
    ("gpu", "arch", "args", "word"),
    [
        ("RTX", ARCH, {}, "no fused kernel"),
        ("L40S", ARCH, {}, "no fused kernel"),
        ("MI300X", ARCH, {}, "no fused kernel"),
        ("H20", ARCH, {}, "H20"),
        ("H200NVL", ARCH, {}, "NVSwitch"),
        ("H200", "MiMoV2FlashForCausalLM", {}, "MiMo"),
        ("H200", "LlamaForCausalLM", {}, "not on the reviewed list"),
        ("H200", "Qwen3MoeForCausalLM", {}, "not on the reviewed list"),
        ("H200", "DeepseekV32ForCausalLM", {}, "SGLang's own list"),
        ("H200", "PixtralForConditionalGeneration", {}, "config chooses"),
        ("B200", ARCH, {"speculative_algorithm": "EAGLE"}, "37745"),
        ("H200", "MiniMaxM2ForCausalLM", {"speculative_algorithm": "EAGLE"}, "not reviewed with speculative"),
    ],
)
def test_a_gpu_or_model_leaves_it_off(gpu: str, arch: str, args: dict[str, Any], word: str) -> None:
    decision = decide(launch("0.5.15", gpu, arch, **args))
    assert not decision.acts
    assert word in decision.reason


def test_speculation_on_sm90_with_listed_layers_is_allowed() -> None:
    assert decide(launch("0.5.15", "H200", ARCH, speculative_algorithm="EAGLE")).acts


def test_what_is_not_known_leaves_it_off() -> None:
    known = launch("0.5.15", "H200", ARCH)
    for name in (
        "args.pp_size",
        "args.ep_size",
        "args.moe_a2a_backend",
        "gpu.sm",
        "gpu.name",
        "model.architecture",
    ):
        facts = {key: fact for key, fact in known.facts.items() if key != name}
        decision = decide(Launch(facts=facts, source=known.source))
        assert not decision.acts
        assert name in decision.reason
    assert not decide(Launch(facts=known.facts, source=None)).acts


def test_a_wrapper_is_resolved_by_its_text_config() -> None:
    large = launch("0.5.15", "H200", "PixtralForConditionalGeneration", model={"config": text("deepseek_v3")})
    small = launch("0.5.15", "H200", "PixtralForConditionalGeneration", model={"config": text("ministral3")})
    assert decide(large).acts
    assert not decide(small).acts


def test_a_wrapper_with_layers_of_another_family_is_left_off() -> None:
    """From 0.5.22 Llama keeps the contract as well; a small Pixtral is still not what was reviewed."""
    asked = launch("0.5.22", "H200", "PixtralForConditionalGeneration", model={"config": text("ministral3")})
    assert "was not reviewed" in decide(asked).reason


def text(model_type: str) -> dict[str, Any]:
    return {"text_config": {"model_type": model_type}}


@pytest.mark.parametrize("release", ["0.5.23"])
def test_mimo_is_left_to_a_sglang_that_has_a_branch_for_it(release: str) -> None:
    decision = decide(launch(release, "B200", "MiMoV2FlashForCausalLM"))
    assert not decision.acts
    assert "SGLang's own list decides" in decision.reason


@pytest.mark.parametrize("release", RELEASES)
def test_every_entry_is_reviewed_where_it_acts(release: str) -> None:
    """Where the list acts on SM90 the derived contract is full, and tier 1 stacks layers of its listed sibling."""
    here = source(release)
    acting = [arch for arch in (*SAME_DECODER, *OWN_DECODER) if decide(launch(release, "H200", arch)).acts]
    print(f"\n{release}: the list adds {' '.join(acting)}")
    for arch in acting:
        assert fusion_contract.full_contract(here, arch).value is True
        if arch in SAME_DECODER:
            assert set(fusion_contract.decoders(here, arch)) <= set(
                fusion_contract.decoders(here, SAME_DECODER[arch])
            )
    assert not set(SAME_DECODER) & OWN_DECODER


def edited_0_5_10(folder: Path) -> Path:
    """The tree that the project began with: 0.5.10 whose list does not have Qwen3.5 yet."""
    shutil.copytree(tree("0.5.10") / "sglang" / "srt", folder / "sglang" / "srt")
    args = folder / "sglang" / "srt" / "server_args.py"
    before = args.read_text()
    after = before
    for name in ("Qwen3_5MoeForConditionalGeneration", "Qwen3_5ForConditionalGeneration"):
        listed = f'                "{name}",\n'
        assert listed in after
        after = after.replace(listed, "")
    args.write_text(after)
    return folder


@pytest.mark.parametrize(("gpu", "acts"), [("H200", True), ("B200", True), ("RTX", False)])
def test_qwen35_moe_where_the_list_lacks_it(tmp_path: Path, gpu: str, acts: bool) -> None:
    here = engine.find(edited_0_5_10(tmp_path))
    assert here is not None
    asked = launch("0.5.10", gpu, "Qwen3_5MoeForConditionalGeneration", tree_source=here)
    assert decide(asked).acts is acts
    assert not decide(
        launch("0.5.10", gpu, "Qwen3_5MoeForConditionalGeneration")
    ).acts  # the real list has it


class Odd:
    """A view of which nothing can be read."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("odd")


def test_trouble_leaves_sglangs_decision_and_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "sglang_guards"):
        assert auto_enable.around_auto_enable(lambda view: {}, Odd()) == {}
        auto_enable.after_model_adjustments(Odd())
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert all("[ARF301]" in record.getMessage() for record in caplog.records)


def test_sglangs_own_answer_and_errors_pass_through() -> None:
    own = {"flashinfer_allreduce_fusion_backend": "auto"}
    assert auto_enable.around_auto_enable(lambda view: own, Odd()) is own

    def fails(view: object) -> dict[str, Any]:
        raise ValueError("SGLang's own")

    with pytest.raises(ValueError, match="SGLang's own"):
        auto_enable.around_auto_enable(fails, Odd())


@pytest.mark.parametrize(
    "env",
    [{"SGLANG_GUARDS": "off"}, {"SGLANG_GUARDS_AUTO": "0"}, {"SGLANG_GUARDS_IGNORE": "ARF=we measure first"}],
)
def test_switches_are_honoured_before_anything_is_read(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for key, value in env.items():
        monkeypatch.setenv(key, value)
    assert auto_enable.around_auto_enable(lambda view: {}, Odd()) == {}
    assert not caplog.records

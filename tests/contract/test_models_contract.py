"""Which architectures keep the whole contract of all-reduce fusion, in every release: derived, printed and held."""

from __future__ import annotations

import functools
import shutil
import time
from pathlib import Path

import pytest

from sglang_guards import source
from sglang_guards.source.models import fusion_contract
from tests.contract.tables import from_release
from tests.trees import RELEASES, tree

#: Release -> (architectures gained, architectures lost) since the release before.
FULL: dict[str, tuple[str, str]] = {
    "0.5.9": (
        "BailingMoEForCausalLM BailingMoeForCausalLM BailingMoeV2ForCausalLM DeepseekV2ForCausalLM"
        " DeepseekV32ForCausalLM DeepseekV3ForCausalLM DotsVLMForCausalLM Glm4MoeForCausalLM Glm4MoeLiteForCausalLM"
        " Glm4vMoeForConditionalGeneration GlmMoeDsaForCausalLM GptOssForCausalLM InternS1ProForConditionalGeneration"
        " KimiK25ForConditionalGeneration KimiVLForConditionalGeneration MiMoV2FlashForCausalLM"
        " MistralLarge3ForCausalLM PixtralForConditionalGeneration Qwen3MoeForCausalLM"
        " Qwen3OmniMoeForConditionalGeneration Qwen3VLMoeForConditionalGeneration SDARMoeForCausalLM",
        "",
    ),
    "0.5.10": (
        "Qwen3_5ForConditionalGeneration Qwen3_5MoeForConditionalGeneration SarvamMLAForCausalLM SarvamMoEForCausalLM",
        "",
    ),
    # From 0.5.11 Pixtral builds Llama layers or DeepSeek layers, as its text config says.
    "0.5.11": (
        "MiMoV2ForCausalLM MiniMaxM2ForCausalLM Step3p5ForCausalLM",
        "PixtralForConditionalGeneration",
    ),
    "0.5.12": ("InternS2PreviewForConditionalGeneration LagunaForCausalLM", ""),
    "0.5.13": ("Step3p7ForConditionalGeneration", ""),
    "0.5.15": (
        "NemotronHForCausalLM NemotronHPuzzleForCausalLM NemotronH_Nano_Omni_Reasoning_V3 NemotronH_Nano_VL_V2",
        "",
    ),
    "0.5.16": ("MellumForCausalLM", ""),
    # Text-only wrappers whose body is named through its module.
    "0.5.17": ("Qwen3_5ForCausalLM Qwen3_5MoeForCausalLM", ""),
    "0.5.19": ("BailingMoeV3ForCausalLM Dots3NoteForCausalLM", ""),
    "0.5.20": ("NemotronH_Omni_Reasoning_V3", ""),
    # 0.5.21 rewrites every framework model on layers/layer_boundary, dense ones included.
    "0.5.21": (
        "BailingMM2NativeForConditionalGeneration BailingMMNativeForConditionalGeneration BailingMoeV2_5ForCausalLM"
        " BailingMoeV3VLForConditionalGeneration Cosmos3ForConditionalGeneration FalconH1ForCausalLM"
        " GigaChat35ForCausalLM Glm5NextForConditionalGeneration InternS2MobiusForConditionalGeneration"
        " K2HorizonForCausalLM LLaDA2MoeModelLM LightOnOCRForConditionalGeneration Llama4ForCausalLM"
        " Llama4ForConditionalGeneration"
        " LongcatFlashForCausalLM MiniMaxM3SparseForCausalLM MiniMaxM3SparseForConditionalGeneration"
        " MossVLForConditionalGeneration Qwen2MoeForCausalLM Qwen3ASRForConditionalGeneration Qwen3ForCausalLM"
        " Qwen3ForRewardModel Qwen3ForSequenceClassification Qwen3Model Qwen3NextForCausalLM"
        " Qwen3VLForConditionalGeneration SDARForCausalLM Step3VLForConditionalGeneration"
        " StepVLForConditionalGeneration XllmForCausalLM",
        "",
    ),
    "0.5.22": (
        "ApertusForCausalLM ArceeForCausalLM Cosmos3EdgeForConditionalGeneration DeciLMForCausalLM"
        " DotsOCRForCausalLM Ernie4_5_VLMoeForConditionalGeneration Exaone4ForCausalLM ExaoneMoEForCausalLM"
        " ExaoneMoeForCausalLM Gemma4AssistantForCausalLM Gemma4ForCausalLM Gemma4ForConditionalGeneration"
        " Gemma4UnifiedAssistantForCausalLM Gemma4UnifiedForConditionalGeneration Glm4ForCausalLM"
        " Glm4vForConditionalGeneration GlmAsrForConditionalGeneration GlmImageForConditionalGeneration"
        " GlmOcrForConditionalGeneration GraniteMoeHybridForCausalLM HYV4ForCausalLM IQuestCoderForCausalLM"
        " IQuestQ1ForCausalLM InternLM3ForCausalLM InternS1ForConditionalGeneration"
        " KimiK3ForConditionalGeneration KimiK3LinearForCausalLM KimiLinearForCausalLM LlamaEmbeddingModel"
        " LlamaForCausalLM LlamaForClassification LlamaForSequenceClassification"
        " LlamaForSequenceClassificationWithNormal_Weights LlavaLlamaForCausalLM LlavaMistralForCausalLM"
        " LlavaQwenForCausalLM LlavaVidForCausalLM LocateAnythingForConditionalGeneration MiDashengLMModel"
        " MiMoForCausalLM MiMoV2ASRForCausalLM MiniCPMO MiniCPMV MiniCPMV4_6ForConditionalGeneration"
        " Ministral3ForCausalLM MistralForCausalLM MistralModel MixtralForCausalLM"
        " MllamaForConditionalGeneration MultiModalityCausalLM NVILAForConditionalGeneration"
        " NVILALiteForConditionalGeneration NanbeigeForCausalLM NanbeigeForSequenceClassification"
        " POINTSV15ChatModel Phi3ForCausalLM Phi4MMForCausalLM PixtralForConditionalGeneration"
        " Qwen2AudioForConditionalGeneration Qwen2ForCausalLM Qwen2ForRewardModel"
        " Qwen2ForSequenceClassification Qwen2VLForConditionalGeneration Qwen2_5_VLForConditionalGeneration"
        " Qwen4ExpForConditionalGeneration Sarashina2VisionForCausalLM Spark2_5ForCausalLM TeleFLMForCausalLM"
        " VoxtralForConditionalGeneration YiVLForCausalLM",
        "",
    ),
    "0.5.23": ("InklingForConditionalGeneration MiniCPMV4_7ForConditionalGeneration", ""),
}

#: A layer skips its sum and does not mark it: with fusion on nobody completes it.
BROKEN: dict[str, set[str]] = {"0.5.9": {"BailingMoeV2_5ForCausalLM"}, "0.5.16": set()}
#: No layer is called the last, so the last one leaves its sum to a layer that does not exist.
LAST_LOST: dict[str, set[str]] = {
    "0.5.9": set(),
    "0.5.11": {"Qwen3NextForCausalLM"},
    "0.5.16": {"BailingMoeV2_5ForCausalLM", "Qwen3NextForCausalLM"},
    "0.5.20": {"BailingMoeV2_5ForCausalLM", "Glm5NextForConditionalGeneration", "Qwen3NextForCausalLM"},
    "0.5.21": set(),
}
#: Cannot be told without the checkpoint's config.
UNKNOWN_0_5_15 = (
    "DeepseekOCRForCausalLM DeepseekVL2ForCausalLM InternS1ForConditionalGeneration InternVLChatModel"
    " LlavaForConditionalGeneration Mistral3ForConditionalGeneration PixtralForConditionalGeneration"
)


def expected(release: str) -> set[str]:
    names: set[str] = set()
    for known in RELEASES[: RELEASES.index(release) + 1]:
        gained, lost = FULL.get(known, ("", ""))
        names = (names | set(gained.split())) - set(lost.split())
    return names


@functools.cache
def kinds(release: str) -> dict[str, str | None]:
    found = source.find(tree(release))
    assert found is not None
    return fusion_contract.all_kinds(found)


def of_kind(release: str, kind: str | None) -> set[str]:
    return {name for name, known in kinds(release).items() if known == kind}


@pytest.mark.parametrize("release", RELEASES)
def test_derived_set(release: str) -> None:
    derived = of_kind(release, "full")
    print(f"\n{release}: {len(derived)} architectures keep the whole contract: {' '.join(sorted(derived))}")
    assert derived == expected(release)
    assert of_kind(release, "broken") == from_release(BROKEN, release)
    assert of_kind(release, "last lost") == from_release(LAST_LOST, release)


def test_what_the_config_decides_is_not_known_without_it() -> None:
    assert of_kind("0.5.15", None) == set(UNKNOWN_0_5_15.split())


@pytest.mark.parametrize(
    ("architecture", "config", "answer"),
    [
        ("PixtralForConditionalGeneration", {"text_config": {"model_type": "deepseek_v3"}}, True),
        ("PixtralForConditionalGeneration", {"text_config": {"model_type": "ministral3"}}, False),
        ("PixtralForConditionalGeneration", None, None),
        ("InternVLChatModel", {"llm_config": {"architectures": ["Qwen3MoeForCausalLM"]}}, True),
        ("InternVLChatModel", {"llm_config": {"architectures": ["Qwen2ForCausalLM"]}}, False),
        ("DeepseekVL2ForCausalLM", {"language_config": {"use_mla": True}}, True),
        ("DeepseekVL2ForCausalLM", {"language_config": {"use_mla": False}}, False),
        ("NoSuchForCausalLM", None, None),
    ],
)
def test_wrappers_are_resolved_to_the_decoder_that_is_built(
    architecture: str, config: dict[str, object] | None, answer: bool | None
) -> None:
    found = source.find(tree("0.5.15"))
    assert found is not None
    assert fusion_contract.full_contract(found, architecture, config).value is answer


#: (file, text, replacement, what the probe must say): one part of the contract taken away from Qwen3.5 of 0.5.15.
SABOTAGE = [
    (
        "qwen3_5.py",
        "            is_last_layer=(layer_id == config.num_hidden_layers - 1),\n",
        "",
        "last lost",
    ),
    ("qwen3_5.py", "hidden_states._sglang_needs_allreduce_fusion = True", "pass", "broken"),
    ("qwen3_5.py", "                should_allreduce_fusion,\n", "", "broken"),
    ("qwen3_5.py", "self.layer_communicator.should_fuse_mlp_allreduce_with_next_layer(", "bool(", "half"),
    ("qwen2_moe.py", "and not should_skip_post_experts_all_reduce(", "and not bool(", "broken"),
    ("qwen2_moe.py", "skip_all_reduce=should_allreduce_fusion or use_reduce_scatter", "None", "broken"),
]


@pytest.mark.parametrize(("name", "old", "new", "kind"), SABOTAGE)
def test_each_part_of_the_contract_counts(tmp_path: Path, name: str, old: str, new: str, kind: str) -> None:
    for folder in ("srt/models", "srt/layers"):
        shutil.copytree(tree("0.5.15") / "sglang" / folder, tmp_path / "sglang" / folder)
    file = tmp_path / "sglang" / "srt" / "models" / name
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    found = source.find(tmp_path)
    assert found is not None
    assert fusion_contract.contract(found, "Qwen3_5MoeForConditionalGeneration").kind == kind


@pytest.mark.parametrize("release", RELEASES)
def test_own_list_keeps_at_least_half_of_the_contract(release: str) -> None:
    """SGLang's own entries communicate by the framework; where one does not, the probe lost its way."""
    found = source.find(tree(release))
    assert found is not None
    listed = found.list("fusion_auto_architectures").values
    assert listed
    own_path = {"DeepseekV4ForCausalLM"}  # a boundary of its own, outside the framework
    lost = {name for name in listed if kinds(release).get(name, "none") == "none"} - own_path
    assert not lost


@pytest.mark.parametrize("release", ["0.5.9", "0.5.15", "0.5.20", "0.5.23"])
def test_one_architecture_is_cheap(release: str) -> None:
    """One answer reads a few files and parses a few methods: hundreds, not tens of thousands of lines."""
    found = source.find(tree(release))
    assert found is not None
    started = time.process_time()
    assert fusion_contract.full_contract(found, "DeepseekV2ForCausalLM").value is True
    print(f"\n{release}: {1000 * (time.process_time() - started):.0f} ms")
    assert sum(text is not None for text in found._texts.values()) <= 12


@pytest.mark.parametrize(
    ("release", "architecture", "completes"),
    [
        ("0.5.13", "Qwen3MoeForCausalLM", False),
        ("0.5.14", "Qwen3MoeForCausalLM", True),
        ("0.5.15", "Qwen3_5MoeForConditionalGeneration", False),
        ("0.5.15", "DeepseekV3ForCausalLM", False),
        ("0.5.20", "NemotronHForCausalLM", False),
    ],
)
def test_who_completes_a_sum_before_the_next_stage(release: str, architecture: str, completes: bool) -> None:
    found = source.find(tree(release))
    assert found is not None
    assert fusion_contract.completes_before_stage(found, architecture) is completes


@pytest.mark.parametrize(
    ("release", "architecture", "captures"),
    [
        ("0.5.13", "GptOssForCausalLM", True),
        ("0.5.13", "Glm4MoeForCausalLM", True),
        ("0.5.15", "DeepseekV3ForCausalLM", False),
        ("0.5.15", "Qwen3MoeForCausalLM", False),
    ],
)
def test_who_captures_unreduced_states_for_eagle3(release: str, architecture: str, captures: bool) -> None:
    found = source.find(tree(release))
    assert found is not None
    assert fusion_contract.captures_unreduced(found, architecture) is captures

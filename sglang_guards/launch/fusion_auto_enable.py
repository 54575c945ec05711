"""ARF301: FlashInfer all-reduce fusion for architectures that keep its contract and that SGLang's own list lacks.

SGLang decides first. Only where it left the fusion off, nobody set or forbade it, the architecture is on the reviewed
list below, the installed source keeps the whole contract for it, and none of the known defects applies, the fusion is
switched on in SGLang's own slot, so that its later passes (enforce-disable, deterministic mode) still win.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sglang_guards import sglang_compat
from sglang_guards.launch import allreduce_fusion, parallel
from sglang_guards.launch.environment import env_bool
from sglang_guards.launch.facts import Launch, MissingFact
from sglang_guards.source.models import fusion_contract
from sglang_guards.source.tree import Source

logger = logging.getLogger("sglang_guards")

RULE_ID = "ARF301"
_OVERRIDES = "sglang/srt/arg_groups/overrides.py"

PREFILL_CP = (
    "enable_prefill_cp",
    "enable_prefill_context_parallel",
    "enable_nsa_prefill_context_parallel",
    "enable_dsa_prefill_context_parallel",
)

#: Tier 1: another name for the decoder layers of an architecture on SGLang's own list (named on the right).
SAME_DECODER: Mapping[str, str] = {
    "DeepseekV2ForCausalLM": "DeepseekV3ForCausalLM",
    "DeepseekV32ForCausalLM": "DeepseekV3ForCausalLM",
    "GlmMoeDsaForCausalLM": "DeepseekV3ForCausalLM",
    "MistralLarge3ForCausalLM": "DeepseekV3ForCausalLM",
    "PixtralForConditionalGeneration": "DeepseekV3ForCausalLM",
    "KimiVLForConditionalGeneration": "DeepseekV3ForCausalLM",
    "KimiK25ForConditionalGeneration": "DeepseekV3ForCausalLM",
    "DotsVLMForCausalLM": "DeepseekV3ForCausalLM",
    "DeepseekVL2ForCausalLM": "DeepseekV3ForCausalLM",
    "DeepseekOCRForCausalLM": "DeepseekV3ForCausalLM",
    "Glm4vMoeForConditionalGeneration": "Glm4MoeForCausalLM",
    "Qwen3VLMoeForConditionalGeneration": "Qwen3MoeForCausalLM",
    "Qwen3OmniMoeForConditionalGeneration": "Qwen3MoeForCausalLM",
    "InternVLChatModel": "Qwen3MoeForCausalLM",
    "InternS1ForConditionalGeneration": "Qwen3MoeForCausalLM",
    "InternS2PreviewForConditionalGeneration": "Qwen3_5MoeForConditionalGeneration",
    "Qwen3_5ForConditionalGeneration": "Qwen3_5MoeForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration": "Qwen3_5MoeForConditionalGeneration",
    "NemotronHPuzzleForCausalLM": "NemotronHForCausalLM",
    "NemotronH_Nano_VL_V2": "NemotronHForCausalLM",
    "NemotronH_Nano_Omni_Reasoning_V3": "NemotronHForCausalLM",
    "NemotronH_Omni_Reasoning_V3": "NemotronHForCausalLM",
}
#: Tier 2: decoder layers of their own, read by hand in 0.5.13 to 0.5.20; not with speculative decoding.
OWN_DECODER = frozenset(
    {
        "BailingMoEForCausalLM",
        "BailingMoeForCausalLM",
        "BailingMoeV2ForCausalLM",
        "BailingMoeV3ForCausalLM",
        "InternS1ProForConditionalGeneration",
        "LagunaForCausalLM",
        "MellumForCausalLM",
        "MiMoV2FlashForCausalLM",
        "MiMoV2ForCausalLM",
        "MiniMaxM2ForCausalLM",
        "SDARMoeForCausalLM",
        "SarvamMLAForCausalLM",
        "SarvamMoEForCausalLM",
        "Step3p5ForCausalLM",
        "Step3p7ForConditionalGeneration",
    }
)


@dataclass(frozen=True)
class Decision:
    """What start-up does: write `value` to `field`, or nothing (`field` is None) for the `reason`.

    `listed` says whether the architecture is on this module's list at all; `where` is the deciding source line.
    """

    field: str | None
    value: Any
    reason: str
    listed: bool = False
    where: str = ""

    @property
    def acts(self) -> bool:
        return self.field is not None


def decide(launch: Launch) -> Decision:
    """Whether to switch the fusion on. Anything that is not known is a reason to leave it."""
    try:
        return _decide(launch)
    except MissingFact as missing:
        return Decision(None, None, f"{missing.name} is not known", listed=_is_listed(launch))


def _is_listed(launch: Launch) -> bool:
    architecture = launch.get("model.architecture")
    return architecture in SAME_DECODER or architecture in OWN_DECODER


def _decide(launch: Launch) -> Decision:
    architecture = launch["model.architecture"]
    if not _is_listed(launch):
        return Decision(None, None, f"{architecture} is not on the reviewed list")
    for refusal in _refusals(launch):
        return Decision(None, None, refusal, listed=True)
    source = launch.source
    if source is None:
        raise MissingFact("source.fusion_auto_architectures")
    own = sglang_decides(source, architecture)
    if own is None:
        raise MissingFact("source.fusion_auto_architectures")
    if own:
        return Decision(None, None, f"SGLang's own list decides for {architecture}", listed=True)
    kept = allreduce_fusion.contract(launch)
    if kept.kind != "full":
        return Decision(None, None, kept.why or f"{architecture} does not keep the contract", listed=True)
    sibling = SAME_DECODER.get(architecture, architecture)
    stacked = set(fusion_contract.decoders(source, architecture, launch.get("model.config")))
    if (
        others := stacked - set(fusion_contract.decoders(source, sibling))
        if sibling != architecture
        else set()
    ):
        return Decision(
            None, None, f"{', '.join(sorted(others))} was not reviewed for {architecture}", listed=True
        )
    field = allreduce_fusion.field(launch)
    value: Any = "auto" if field == allreduce_fusion.BACKEND else True
    reason = f"{kept.why}; SGLang's list lacks {architecture}"
    if sibling != architecture:
        reason += f"; {sibling} stacks the same layers"
    return Decision(field, value, reason, listed=True, where=kept.where)


def sglang_decides(source: Source, architecture: str) -> bool | None:
    """Whether SGLang's own automatic switch knows the architecture, on its list or by a branch of its own."""
    listed = source.list("fusion_auto_architectures").values
    if listed is None:
        return None
    if architecture in listed:
        return True
    code = source.maybe(_OVERRIDES, sglang_compat.AUTO_PASS)
    return code is not None and bool(source.naming(code, architecture))


def _refusals(launch: Launch) -> Iterator[str]:
    """Reasons to leave the fusion off, SGLang's own conditions first, then the known defects."""
    if allreduce_fusion.is_on(launch):
        yield "it is on already"
    if allreduce_fusion.is_explicit(launch):
        yield "the operator has set it"
    if launch.get(f"args.{allreduce_fusion.ENFORCE_OFF}"):
        yield "--enforce-disable-flashinfer-allreduce-fusion wins"
    if not allreduce_fusion.has_kernel(launch):
        yield f"{launch['gpu.name']} has no fused kernel (SM90 and SM10x do)"
    if (launch["args.tp_size"] or 1) <= 1:
        yield "TP is 1"
    if (launch["args.nnodes"] or 1) > 1:
        yield "more than one node"
    if parallel.dp_attention(launch):
        yield "data-parallel attention makes it a no-op"
    if str(launch["args.moe_a2a_backend"] or "none") != "none":
        yield f"the experts use {launch.flag('moe_a2a_backend')}"
    yield from _defects(launch)


def _defects(launch: Launch) -> Iterator[str]:
    tp, ep = launch["args.tp_size"] or 1, launch["args.ep_size"] or 1
    if 1 < ep < tp:
        yield f"EP {ep} within TP {tp}: the fused kernel may reduce over one group only"
    if (launch["args.pp_size"] or 1) > 1:
        yield "pipeline stages may drop a sum that was left to the next layer"
    if launch.get("args.enable_deterministic_inference") or launch.get("args.rl_on_policy_target"):
        yield "deterministic inference"
    if launch.get("args.moe_dense_tp_size") is not None:
        yield f"{launch.flag('moe_dense_tp_size')}: replicated dense layers were not reviewed with it"
    for name in ("attn_cp_size", "dcp_size"):
        if (launch.get(f"args.{name}") or 1) > 1:
            yield f"{launch.flag(name)}: not reviewed with context parallelism"
    for name in ("enable_pdmux", "encoder_only", *PREFILL_CP):
        if launch.get(f"args.{name}"):
            yield f"{launch.flag(name)}: not reviewed with it"
    if env_bool(launch.env, "SGLANG_SHARED_EXPERT_TP1", launch.source):
        yield "SGLANG_SHARED_EXPERT_TP1 changes who sums"
    yield from _speculation(launch)
    yield from _machine(launch)


def _speculation(launch: Launch) -> Iterator[str]:
    algorithm = str(launch["args.speculative_algorithm"] or "").upper()
    if not algorithm:
        return
    if algorithm == "EAGLE3":
        yield "EAGLE3 may read hidden states whose sum is still open"
    elif allreduce_fusion.generation(launch) == 10:
        yield "beside speculative decoding the mnnvl backend was measured slower than no fusion (sglang #37745)"
    elif launch["model.architecture"] in OWN_DECODER:
        yield "decoder layers of its own are not reviewed with speculative decoding"


def _machine(launch: Launch) -> Iterator[str]:
    name = str(launch["gpu.name"])
    if launch["model.architecture"].startswith("MiMoV2") and allreduce_fusion.generation(launch) != 10:
        yield "SGLang leaves MiMo off on everything but SM10x"
    if allreduce_fusion.is_h20(name):
        yield "FlashInfer's kernel hung on H20 (flashinfer #2204)"
    if allreduce_fusion.without_nvswitch(name):
        yield f"{name} may have no NVSwitch; FlashInfer's kernels are slow or fail without it"
    if versions := allreduce_fusion.mismatched_flashinfer(launch):
        yield f"FlashInfer packages of different versions: {versions}"

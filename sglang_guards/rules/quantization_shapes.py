"""QNT: sizes of quantized weights against the way a launch splits them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from sglang_guards.launch.checkpoint import is_ignored
from sglang_guards.launch.fact import MOST_RANKS
from sglang_guards.launch.facts import Launch
from sglang_guards.launch.parallel import experts_tp_of
from sglang_guards.report.model import Severity
from sglang_guards.rules import Change, Violation, manual, public_note, rule, set_to, sglang_issue
from sglang_guards.rules.reports_common import NO_A2A, TRTLLM, env_on, ep_size

#: The two checks of the source that a part can fail.
_EXPERTS, _DENSE = "experts", "dense layers"
_METHODS = frozenset({"fp8", "blockwise_int8"})
#: Architectures that split a shared expert over the whole TP group, whatever the expert parallelism.
_SHARED_OVER_TP = (
    "Step3p5", "Qwen2Moe", "Qwen3Next", "Qwen3_5Moe", "DeepseekV2For", "DeepseekV3For", "DeepseekV32For", "GlmMoeDsa",
)  # fmt: skip
#: Architectures whose leading dense layers are split over the whole TP group.
_DENSE_OVER_TP = ("DeepseekV2For", "DeepseekV3For", "DeepseekV32For", "GlmMoeDsa")


@dataclass(frozen=True)
class Part:
    """A kind of weight that a launch splits: its width in the config, over how many ranks, and what decides that."""

    name: str
    key: str
    size: int
    ways: int
    split: str
    case: str

    def misfits(self, block: int) -> bool:
        return self.ways > 1 and (self.size % self.ways != 0 or (self.size // self.ways) % block != 0)


def _block_fp8(launch: Launch) -> bool:
    return launch["model.quant"] in _METHODS and launch["model.quant_block"] is not None


@rule(
    "QNT101",
    "block-size-against-tensor-parallelism",
    Severity.ERROR,
    summary="block-quantized weights do not split into whole blocks",
    source={_EXPERTS: {"expert_block_check": True}, _DENSE: {"linear_block_check": True}},
    reports=[
        sglang_issue(3345),
        sglang_issue(26107),
        public_note("SGLang cookbook, Qwen3-Coder: FP8 needs --ep 2 at TP 8"),
    ],
    applies=_block_fp8,
)
def block_size(launch: Launch) -> Iterator[Violation]:
    """Block-quantized weights whose share on one rank is no multiple of the block.

    ## What it checks
    The checkpoint's `weight_block_size` against three widths: the routed experts (split over TP / EP ranks), a shared
    expert and the leading dense layers (split over the whole TP group, so that expert parallelism does not help).
    Parts that the checkpoint leaves unquantized, shared experts that are fused into the routed ones or replicated,
    and runners that pad are left alone.

    ## Why it matters
    A scale belongs to a whole block. A rank that holds a part of one cannot be given its scale.

    ## When it hurts
    While the model is built, before the weights are read: a ValueError in every worker, after minutes of start-up.

    ## Fix
    Where only routed experts do not fit, raise --ep-size until each rank holds whole blocks; otherwise lower --tp.
    """
    block = launch["model.quant_block"]
    block_n, block_k = int(block[0]), int(block[1])
    step = math.lcm(block_n, block_k)
    for part in _parts(launch):
        if not part.misfits(step):
            continue
        share = part.size / part.ways
        yield Violation(
            case=part.case,
            message=f"{part.name} do not split into whole {block_n}×{block_k} blocks",
            flags=("tp_size", *(["ep_size"] if ep_size(launch) > 1 else [])),
            cause=f"{part.key} {part.size} over {part.ways} ranks ({part.split}) leaves {share:g} columns each, not a "
            f"multiple of {step}",
            impact="every worker raises a ValueError while the model is built",
            fix=_fix(launch, part, step),
        )


def _parts(launch: Launch) -> Iterator[Part]:
    tp, ep = int(launch["args.tp_size"]), ep_size(launch)
    ignored = launch.get("model.quant_ignored") or ()
    architecture = str(launch.get("model.architecture") or "")
    moe = launch["model.is_moe"]
    routed = launch.get("model.moe_intermediate_size")
    if (
        moe
        and isinstance(routed, int)
        and not _routed_fit_anyway(launch)
        and not _names(ignored, r"\bexperts\b")
    ):
        ways = experts_tp_of(launch)
        split = f"TP {tp} / EP {ep}" if ep > 1 else f"TP {tp}, no expert parallelism"
        yield Part("the routed experts", "expert width", routed, ways, split, _EXPERTS)
    shared = _shared_width(launch)
    if (
        shared
        and architecture.startswith(_SHARED_OVER_TP)
        and not _names(ignored, r"\bshared?_experts?(?!_gate)\b")
    ):
        yield Part("the shared expert's weights", "shared-expert width", shared, tp, "TP, EP does not help",
                   _DENSE)  # fmt: skip
    dense = launch.get("model.intermediate_size")
    if (
        launch.get("model.first_k_dense")
        and isinstance(dense, int)
        and architecture.startswith(_DENSE_OVER_TP)
        and launch["args.moe_dense_tp_size"] != 1
        and not any(
            is_ignored(f"model.layers.0.mlp.{p}", ignored) for p in ("gate_proj", "up_proj", "down_proj")
        )
    ):
        yield Part("the leading dense layers", "intermediate_size", dense, tp, "TP", _DENSE)


def _names(patterns: object, words: str) -> bool:
    """Whether an unquantized module is one of these: how much of it stays quantized is then not told."""
    return any(re.search(words, str(p)) for p in patterns) if isinstance(patterns, (list, tuple)) else False


def _routed_fit_anyway(launch: Launch) -> bool:
    if launch["args.moe_runner_backend"] in TRTLLM:  # pads to 128 before the check
        return True
    if (launch.get("model.config") or {}).get("expert_dtype") == "fp4":
        return True
    if int(launch["args.dwdp_size"] or 1) > 1:  # experts are not split by TP
        return True
    aiter = launch["gpu.platform"] == "hip" and env_on(launch, "SGLANG_USE_AITER")
    return aiter and launch["source.expert_block_padded_by_aiter"] is True


def _shared_width(launch: Launch) -> int | None:
    """Width of a shared expert that is split over TP; None where there is none, it is fused or replicated."""
    if launch["args.moe_a2a_backend"] not in NO_A2A or env_on(launch, "SGLANG_SHARED_EXPERT_TP1"):
        return None
    apart = bool(launch["args.disable_shared_experts_fusion"])
    if launch["args.enforce_shared_experts_fusion"] and not apart:
        return None
    unfused = apart or launch["gpu.platform"] == "cuda"
    own = launch.get("model.shared_expert_intermediate_size")
    if isinstance(own, int):
        if str(launch.get("model.architecture")).startswith("Qwen3Next") and not apart:
            unfused = launch["source.qwen3_next_fuses_shared_experts_on_cuda"] is False
        return own if unfused else None
    count, routed = launch.get("model.num_shared_experts"), launch.get("model.moe_intermediate_size")
    if not count or not isinstance(routed, int):
        return None
    alone = apart or (unfused and int(launch["args.ep_size"]) > 1)
    return int(count) * routed if alone else None


def _fix(launch: Launch, part: Part, step: int) -> Change:
    tp, ep = int(launch["args.tp_size"]), ep_size(launch)
    others_fit = not any(one.misfits(step) for one in _parts(launch) if one.case != _EXPERTS)
    if part.case == _EXPERTS and others_fit:  # else only fewer ranks settle all parts at once
        for wider in (size for size in range(ep + 1, min(tp, MOST_RANKS) + 1) if tp % size == 0):
            if not replace(part, ways=tp // wider).misfits(step) and part.size % step == 0:
                columns = f"each rank then holds {part.size // (tp // wider)} columns"
                return set_to("ep_size", wider, then=columns, safe=False)
    smaller_sizes = range(min(tp - 1, MOST_RANKS), 0, -1)
    for fewer in (size for size in smaller_sizes if tp % size == 0 and size % min(ep, size) == 0):
        if not any(_resplit(one, fewer, min(ep, fewer)).misfits(step) for one in _parts(launch)):
            smaller = set_to("tp_size", fewer, safe=False)
            return smaller + set_to("ep_size", fewer, safe=False) if ep > fewer else smaller
    return manual("use another checkpoint or fewer ranks")


def _resplit(part: Part, fewer: int, ep: int) -> Part:
    return replace(part, ways=max(1, fewer // ep) if part.case == _EXPERTS else fewer)

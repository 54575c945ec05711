"""ARF: reported hazards of fused all-reduce kernels with a model, a backend or speculation; each has its own facts."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_guards.launch import allreduce_fusion
from sglang_guards.launch.facts import Launch
from sglang_guards.report.model import Severity
from sglang_guards.rules import Violation, flashinfer_issue, read_in, rule, sglang_issue, vllm_issue
from sglang_guards.rules.allreduce_fusion_common import SPECULATION, flags, forbid, use_trtllm
from sglang_guards.rules.reports_common import reported_in, speculates
from sglang_guards.source.models import fusion_contract

#: Hidden size of Nemotron-3-Nano, the model of the report.
_NANO = 2688


def _is(launch: Launch, *names: str) -> bool:
    """Whether the fused kernel runs with one of these backends."""
    return allreduce_fusion.is_active(launch) and allreduce_fusion.backend(launch).name in names


def _speculating(launch: Launch) -> bool:
    return allreduce_fusion.is_on(launch) and speculates(launch)


@rule(
    "ARF202",
    "mnnvl-fusion-with-speculation-on-b300",
    Severity.WARNING,
    summary="the mnnvl fusion backend was measured slower than no fusion with speculative decoding",
    reports=[sglang_issue(37745), sglang_issue(28946)],
    applies=_speculating,
)
def mnnvl_speculation(launch: Launch) -> Iterator[Violation]:
    """Fusion by mnnvl beside EAGLE or NEXTN on SM103 (B300, GB300).

    ## What it checks
    Speculative decoding is on, fusion is on by the operator or by SGLang, the request becomes mnnvl on this GPU, and
    the GPU is SM103.

    ## Why it matters
    GLM-5.3-Flash on 8 × B300, TP 8, EP 8, NEXTN: mnnvl 17,190 tok/s with 3.79 accepted tokens, trtllm 28,787 with 5.72,
    off 32,930 with 5.88 (sglang #37745, not repeated by us). On 4 × GB300 trtllm was 8 % to 42 % better than mnnvl
    (sglang #28946).

    ## When it hurts
    In throughput and in the accepted length of the draft. To confirm: compare `accept len` in SGLang's decode log with
    fusion and without.

    ## Fix
    Set the backend trtllm, or switch fusion off.
    """
    if launch["gpu.platform"] != "cuda" or launch["gpu.sm"] != 103 or not _is(launch, "mnnvl"):
        return
    where = allreduce_fusion.backend(launch).where.removeprefix("sglang/srt/")
    yield Violation(
        flags=flags(launch, SPECULATION),
        cause=f"on {launch.get('gpu.name', 'SM103')} fusion resolves to the mnnvl backend ({where})",
        impact="a report measured 17,190 tok/s with mnnvl, 28,787 with trtllm and 32,930 without fusion (8 × B300, "
        "NEXTN); to confirm, compare `accept len` in the decode log",
        fix=use_trtllm(),
    )


@rule(
    "ARF203",
    "mnnvl-fusion-across-nodes",
    Severity.WARNING,
    summary="multi-node mnnvl all-reduce fusion needs one NVLink domain, which this SGLang does not check",
    source={"fusion_checks_nvlink_clique": False},
    only_if="fusion_backend_flag_exists",
    reports=[vllm_issue(51986), flashinfer_issue(2006)],
    applies=allreduce_fusion.is_on,
)
def across_nodes(launch: Launch) -> Iterator[Violation]:
    """Fusion by mnnvl over several nodes without a check of the NVLink clique.

    ## What it checks
    Fusion is on over more than one node, the request becomes mnnvl, and the installed source (before 0.5.23) does not
    ask whether the ranks share an NVLink clique. SGLang switches it on by itself from 0.5.14.

    ## Why it matters
    mnnvl maps the memory of all ranks over NVLink. Nodes that are joined by InfiniBand only cannot, and the workspace
    then times out again and again and leaks memory (reported for vLLM).

    ## When it hurts
    At start-up on nodes without a common NVLink domain; on one GB200 or GB300 NVL72 rack it works. To confirm: all
    nodes must show the same ClusterUUID and CliqueId in `nvidia-smi -q`.

    ## Fix
    Switch fusion off where the nodes do not share a clique.
    """
    if (launch["args.nnodes"] or 1) <= 1 or not _is(launch, "mnnvl"):
        return
    rack = "GB" in str(launch.get("gpu.name", "")).upper().replace("GIB", "")
    yield Violation(
        severity=Severity.INFO if rack else Severity.WARNING,
        flags=flags(launch, "nnodes"),
        cause="this SGLang does not check that the nodes share an NVLink clique",
        impact="on nodes joined by InfiniBand only, start-up hangs: the workspace times out every 30 s; to confirm, "
        "compare ClusterUUID and CliqueId of `nvidia-smi -q` on all nodes",
        fix=forbid(launch),
    )


@rule(
    "ARF206",
    "mnnvl-fusion-with-nvfp4-eagle-on-b300",
    Severity.WARNING,
    summary="mnnvl all-reduce fusion was reported to crash with an NVFP4 model and EAGLE on SM103",
    reports=[sglang_issue(29485)],
    applies=_speculating,
)
def b300(launch: Launch) -> Iterator[Violation]:
    """Fusion by mnnvl on B300 or GB300 with an NVFP4 checkpoint and EAGLE.

    ## What it checks
    Fusion is on and becomes mnnvl on one node of SM103, the checkpoint is NVFP4, speculation is EAGLE or NEXTN, and
    this is 0.5.14 or 0.5.15, for which it was reported. No line of the source decides it.

    ## Why it matters
    The mnnvl kernel met an illegal memory access with GLM-5.1-NVFP4. The change was not merged, and the cause of a
    sibling report turned out to be another one, so this stays a hint.

    ## When it hurts
    Under load: an illegal memory access ends all ranks. To confirm: it is gone with the backend trtllm.

    ## Fix
    Set the backend trtllm.
    """
    if launch["gpu.platform"] != "cuda" or launch["gpu.sm"] != 103:
        return
    if "fp4" not in str(launch["model.quant"] or "") or not reported_in(launch, "0.5.14", "0.5.15.post1"):
        return
    if _is(launch, "mnnvl"):
        yield Violation(
            flags=flags(launch, SPECULATION),
            cause=f"{launch['model.quant']} on SM103 with {launch.flag(SPECULATION)}, where fusion resolves to the "
            "mnnvl backend",
            impact="an illegal memory access under load; to confirm, it is gone with the trtllm backend",
            fix=use_trtllm(),
        )


@rule(
    "ARF207",
    "fusion-with-breakable-prefill-graph",
    Severity.WARNING,
    summary="all-reduce fusion was reported to crash with breakable prefill graphs and EAGLE",
    reports=[sglang_issue(29274), sglang_issue(23765)],
    applies=_speculating,
)
def breakable(launch: Launch) -> Iterator[Violation]:
    """Fusion with --cuda-graph-backend-prefill breakable and speculative decoding on SM10x.

    ## What it checks
    Fusion is on, the prefill graph is breakable, speculation is EAGLE or NEXTN, the GPU is SM10x, and this is 0.5.14,
    for which it was reproduced. No line of the source decides it.

    ## Why it matters
    The fused kernel signals its completion early (programmatic dependent launch), and the captured graph goes on with
    data that is not there yet.

    ## When it hurts
    At the first longer prefill: the server crashes. To confirm: it does not with another prefill graph.

    ## Fix
    Choose another prefill graph, or switch fusion off.
    """
    if launch["args.cuda_graph_backend_prefill"] != "breakable" or not reported_in(
        launch, "0.5.14", "0.5.14"
    ):
        return
    if allreduce_fusion.is_active(launch) and allreduce_fusion.generation(launch) == 10:
        yield Violation(
            flags=flags(launch, "cuda_graph_backend_prefill", SPECULATION),
            cause="0.5.14 on SM10x: the fused kernel may signal completion before the data of the captured graph is "
            "there",
            impact="the server crashes at the first longer prefill; to confirm, it is gone without the breakable graph",
            fix=forbid(launch),
        )


@rule(
    "ARF208",
    "trtllm-fusion-with-nemotron-nano",
    Severity.WARNING,
    summary="all-reduce fusion of FlashInfer 0.6.14 lowers the accuracy of Nemotron-3-Nano",
    reports=[sglang_issue(30945)],
    applies=allreduce_fusion.is_on,
)
def nemotron(launch: Launch) -> Iterator[Violation]:
    """Fusion by TRT-LLM's kernel with Nemotron-3-Nano and FlashInfer 0.6.14.

    ## What it checks
    The architecture is NemotronH of the size of Nemotron-3-Nano, fusion is on and becomes trtllm, and FlashInfer (the
    installed one, else the one that this SGLang pins) is 0.6.14. SGLang switches fusion on by itself here.

    ## Why it matters
    GSM8K fell from 0.84 to 0.78 with TP 2 (sglang #30945). Upstream switched fusion off in its own test; the
    architecture is still on the list.

    ## When it hurts
    At every request, in accuracy only. To confirm: run GSM8K with and without fusion.

    ## Fix
    Switch fusion off, or use a SGLang with another FlashInfer.
    """
    if not str(launch["model.architecture"]).startswith("NemotronH") or launch["model.hidden_size"] != _NANO:
        return
    if _is(launch, "trtllm") and allreduce_fusion.flashinfer_version(launch).release == (0, 6, 14):
        yield Violation(
            flags=flags(launch),
            cause=f"{launch['model.architecture']} with hidden size {_NANO}, the trtllm backend and FlashInfer 0.6.14",
            impact="lower accuracy at every request: a report measured GSM8K 0.78 instead of 0.84 with TP 2",
            fix=forbid(launch),
        )


@rule(
    "ARF210",
    "fusion-with-eagle3-capture",
    Severity.INFO,
    summary="EAGLE3 reads hidden states before their reduction with all-reduce fusion",
    source={"fusion_layer_boundary": False},
    reports=[read_in("srt/models/gpt_oss.py of 0.5.13: aux_hidden_states.append(hidden_states + residual)")],
    applies=lambda launch: (
        allreduce_fusion.is_on(launch) and str(launch[f"args.{SPECULATION}"] or "").upper() == "EAGLE3"
    ),
)
def eagle3(launch: Launch) -> Iterator[Violation]:
    """Fusion with EAGLE3 where the model captures hidden states before their sum is completed.

    ## What it checks
    Fusion is on with EAGLE3, the model leaves the sum of its MLP or MoE to the next layer, and it hands
    `hidden_states + residual` to the draft without completing that sum. The layer boundary (0.5.21) completes it.

    ## Why it matters
    The draft then reads partial sums. The target verifies every token, so its output stays right; the draft is accepted
    less often. This follows from the source; the loss was not measured.

    ## When it hurts
    In the accepted length. To confirm: compare `accept len` in the decode log with and without fusion.

    ## Fix
    Switch fusion off if the accepted length is better without it.
    """
    if not allreduce_fusion.is_active(launch) or not allreduce_fusion.defers(launch):
        return
    source, architecture = launch.source, launch["model.architecture"]
    config = launch.get("model.config")
    if source is not None and fusion_contract.captures_unreduced(source, architecture, config):
        yield Violation(
            flags=flags(launch, SPECULATION),
            cause=f"{architecture} hands hidden_states + residual to the draft before a deferred reduction is complete",
            impact="the draft's accept length drops, the output stays right; to confirm, compare `accept len` with and "
            "without fusion",
            fix=forbid(launch),
        )


@rule(
    "ARF106",
    "fusion-with-replicated-dense-layers",
    Severity.ERROR,
    summary="all-reduce fusion adds up the token slices of replicated dense layers",
    source={"fusion_guards_scattered_mlp": False},
    reports=[sglang_issue(20901), sglang_issue(19918)],
    applies=lambda launch: allreduce_fusion.is_on(launch) and launch["args.moe_dense_tp_size"] == 1,
)
def replicated_dense(launch: Launch) -> Iterator[Violation]:
    """All-reduce fusion with --moe-dense-tp-size 1.

    ## What it checks
    Fusion is on, the model starts with dense layers, --moe-dense-tp-size 1 replicates them, and the installed source
    does not ask for that layout before it leaves a layer's sum to the next one (0.5.13 and later do).

    ## Why it matters
    A replicated dense layer works on the rank's own slice of the tokens: there is nothing to sum. The fused kernel
    adds the slices of all ranks into each other. Reported for DeepSeek-R1 on 8 × B200 with SGLang's own automatic
    switch (sglang #20901): garbage in every answer. The repair is sglang pull request #19918, first in 0.5.13.

    ## When it hurts
    From the first token, without a message.

    ## Fix
    Switch fusion off, or remove --moe-dense-tp-size.
    """
    if allreduce_fusion.is_active(launch) and launch["model.first_k_dense"]:
        yield Violation(
            flags=flags(launch, "moe_dense_tp_size"),
            cause=f"the first {launch['model.first_k_dense']} layers are dense and replicated, and their reduction is "
            "deferred to the next layer without a check for that",
            impact="the output is garbage from the first token, without an error",
            fix=forbid(launch),
        )

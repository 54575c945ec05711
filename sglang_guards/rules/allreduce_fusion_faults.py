"""ARF: reported hazards of fused all-reduce kernels with a model, a backend or speculation; each has its own facts."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_guards.launch import allreduce_fusion
from sglang_guards.launch.facts import Launch
from sglang_guards.report.model import Evidence, Finding, Fix, Severity
from sglang_guards.rules import Rule, rule
from sglang_guards.rules.reports_common import (
    flashinfer_issue,
    issue,
    line,
    reported_in,
    speculates,
    vllm_issue,
)
from sglang_guards.source.models import fusion_contract

_ACTIVE = ("args.tp_size", "args.nnodes", "gpu.platform", "gpu.sm")
_BACKEND = (*_ACTIVE, "fusion.backend")
_SPEC = "speculative_algorithm"
#: Hidden size of Nemotron-3-Nano, the model of the report.
_NANO = 2688


def _is(launch: Launch, *names: str) -> bool:
    """Whether the fused kernel runs with one of these backends."""
    return allreduce_fusion.is_active(launch) and allreduce_fusion.backend(launch).name in names


def _trtllm(launch: Launch) -> Fix:
    return Fix("set --flashinfer-allreduce-fusion-backend trtllm", {allreduce_fusion.BACKEND: "trtllm"})


def _speculating(launch: Launch) -> bool:
    return allreduce_fusion.is_on(launch) and speculates(launch)


@rule(
    "ARF202",
    "mnnvl-fusion-with-speculation-on-b300",
    Severity.WARNING,
    summary="the mnnvl fusion backend was measured slower than no fusion beside speculative decoding",
    needs=_BACKEND,
    evidence=(issue(37745), issue(28946)),
    applies=_speculating,
)
def mnnvl_speculation(rule: Rule, launch: Launch) -> Iterator[Finding]:
    """Fusion by mnnvl beside EAGLE or NEXTN on SM103 (B300, GB300).

    ## What it checks
    Speculative decoding is on, fusion is on by the operator or by SGLang, the request becomes mnnvl on this GPU, and
    the GPU is SM103.

    ## Why it matters
    GLM-5.3-Flash on 8 × B300, TP 8, EP 8, NEXTN: mnnvl 17,190 tok/s with 3.79 accepted tokens, trtllm 28,787 with 5.72,
    off 32,930 with 5.88 (sglang #37745, not repeated by us). On 4 × GB300 trtllm was 8 % to 42 % better than mnnvl
    (sglang #28946).

    ## When it hurts
    In throughput and in the accepted length of the draft. To tell: compare «accept len» in SGLang's decode log with
    fusion and without.

    ## Fix
    Set the backend trtllm, or switch fusion off.
    """
    if launch.get("gpu.sm") != 103 or not _is(launch, "mnnvl"):
        return
    yield rule.finding(
        flags=allreduce_fusion.flags(launch, _SPEC),
        cause=f"on {launch.get('gpu.name', 'SM103')} the request becomes mnnvl "
        f"({allreduce_fusion.backend(launch).where.removeprefix('sglang/srt/')})",
        impact="measured on 8 × B300 with NEXTN: 17,190 tok/s with mnnvl, 28,787 with trtllm, 32,930 without fusion; "
        "to tell, compare «accept len» in the decode log",
        fix=_trtllm(launch),
    )


@rule(
    "ARF203",
    "mnnvl-fusion-across-nodes",
    Severity.WARNING,
    summary="mnnvl all-reduce fusion over several nodes needs one NVLink domain, which this SGLang does not check",
    needs=(*_BACKEND, "source.fusion_checks_nvlink_clique"),
    evidence=(vllm_issue(51986), flashinfer_issue(2006)),
    applies=allreduce_fusion.is_on,
)
def across_nodes(rule: Rule, launch: Launch) -> Iterator[Finding]:
    """Fusion by mnnvl over several nodes without a check of the NVLink clique.

    ## What it checks
    Fusion is on over more than one node, the request becomes mnnvl, and the installed source (before 0.5.23) does not
    ask whether the ranks share an NVLink clique. SGLang switches it on by itself from 0.5.14.

    ## Why it matters
    mnnvl maps the memory of all ranks over NVLink. Nodes that are joined by InfiniBand only cannot, and the workspace
    then times out again and again and leaks memory (reported for vLLM).

    ## When it hurts
    At start-up on nodes without a common NVLink domain; on one GB200 or GB300 NVL72 rack it works. To tell: all nodes
    must show the same ClusterUUID and CliqueId in `nvidia-smi -q`.

    ## Fix
    Switch fusion off where the nodes do not share a clique.
    """
    nodes = launch["args.nnodes"] or 1
    if nodes <= 1 or not _is(launch, "mnnvl") or launch["source.fusion_checks_nvlink_clique"]:
        return
    rack = "GB" in str(launch.get("gpu.name", "")).upper().replace("GIB", "")
    yield rule.finding(
        severity=Severity.INFO if rack else Severity.WARNING,
        flags=allreduce_fusion.flags(launch, "nnodes"),
        cause="this SGLang does not check that the nodes share an NVLink clique",
        impact="at start-up, where the nodes are joined by InfiniBand only: the workspace times out every 30 s; "
        "to tell, compare ClusterUUID and CliqueId of `nvidia-smi -q` on all nodes",
        fix=allreduce_fusion.forbid(launch),
        evidence=(line(launch, "fusion_checks_nvlink_clique"),),
    )


@rule(
    "ARF206",
    "mnnvl-fusion-with-nvfp4-eagle-on-b300",
    Severity.WARNING,
    summary="mnnvl all-reduce fusion was reported to crash with an NVFP4 model and EAGLE on SM103",
    needs=(*_BACKEND, "model.quant"),
    evidence=(issue(29485),),
    applies=_speculating,
)
def b300(rule: Rule, launch: Launch) -> Iterator[Finding]:
    """Fusion by mnnvl on B300 or GB300 with an NVFP4 checkpoint and EAGLE.

    ## What it checks
    Fusion is on and becomes mnnvl on one node of SM103, the checkpoint is NVFP4, speculation is EAGLE or NEXTN, and
    this is 0.5.14 or 0.5.15, for which it was reported. No line of the source decides it.

    ## Why it matters
    The mnnvl kernel met an illegal memory access with GLM-5.1-NVFP4. The change was not merged, and the cause of a
    sibling report turned out to be another one, so this stays a hint.

    ## When it hurts
    Under load: an illegal memory access ends all ranks. To tell: it is gone with the backend trtllm.

    ## Fix
    Set the backend trtllm.
    """
    if (
        launch.get("gpu.sm") != 103
        or "fp4" not in str(launch["model.quant"] or "")
        or not _is(launch, "mnnvl")
    ):
        return
    if not reported_in(launch, "0.5.14", "0.5.15.post1"):
        return
    yield rule.finding(
        flags=allreduce_fusion.flags(launch, _SPEC),
        cause=f"{launch['model.quant']} on SM103 with {launch.flag(_SPEC)}: the request becomes mnnvl",
        impact="under load: illegal memory access; to tell, it is gone with the backend trtllm",
        fix=_trtllm(launch),
    )


@rule(
    "ARF207",
    "fusion-with-breakable-prefill-graph",
    Severity.WARNING,
    summary="all-reduce fusion was reported to crash with breakable prefill graphs and EAGLE",
    needs=(*_ACTIVE, "args.cuda_graph_backend_prefill"),
    evidence=(issue(29274), issue(23765)),
    applies=_speculating,
)
def breakable(rule: Rule, launch: Launch) -> Iterator[Finding]:
    """Fusion with --cuda-graph-backend-prefill breakable and speculative decoding on SM10x.

    ## What it checks
    Fusion is on, the prefill graph is breakable, speculation is EAGLE or NEXTN, the GPU is SM10x, and this is 0.5.14,
    for which it was reproduced. No line of the source decides it.

    ## Why it matters
    The fused kernel signals its completion early (programmatic dependent launch), and the captured graph goes on with
    data that is not there yet.

    ## When it hurts
    At the first longer prefill: the server crashes. To tell: it does not with another prefill graph.

    ## Fix
    Choose another prefill graph, or switch fusion off.
    """
    if launch.get("args.cuda_graph_backend_prefill") != "breakable" or not allreduce_fusion.is_active(launch):
        return
    if allreduce_fusion.generation(launch) != 10 or not reported_in(launch, "0.5.14", "0.5.14"):
        return
    yield rule.finding(
        flags=allreduce_fusion.flags(launch, "cuda_graph_backend_prefill", _SPEC),
        cause="0.5.14 on SM10x: the fused kernel may signal completion before the captured graph's data is there",
        impact="at the first longer prefill: a crash; to tell, it is gone without the breakable graph",
        fix=allreduce_fusion.forbid(launch),
    )


@rule(
    "ARF208",
    "trtllm-fusion-with-nemotron-nano",
    Severity.WARNING,
    summary="all-reduce fusion of FlashInfer 0.6.14 lowers the accuracy of Nemotron-3-Nano",
    needs=(*_BACKEND, "model.architecture", "model.hidden_size", "packages.flashinfer-python"),
    evidence=(issue(30945),),
    applies=allreduce_fusion.is_on,
)
def nemotron(rule: Rule, launch: Launch) -> Iterator[Finding]:
    """Fusion by TRT-LLM's kernel with Nemotron-3-Nano and FlashInfer 0.6.14.

    ## What it checks
    The architecture is NemotronH of the size of Nemotron-3-Nano, fusion is on and becomes trtllm, and FlashInfer (the
    installed one, else the one that this SGLang pins) is 0.6.14. SGLang switches fusion on by itself here.

    ## Why it matters
    GSM8K fell from 0.84 to 0.78 with TP 2 (sglang #30945). Upstream switched fusion off in its own test; the
    architecture is still on the list.

    ## When it hurts
    At every request, in accuracy only. To tell: run GSM8K with and without fusion.

    ## Fix
    Switch fusion off, or use a SGLang with another FlashInfer.
    """
    if not str(launch["model.architecture"]).startswith("NemotronH") or launch["model.hidden_size"] != _NANO:
        return
    if not _is(launch, "trtllm") or allreduce_fusion.flashinfer_version(launch).release != (0, 6, 14):
        return
    yield rule.finding(
        flags=allreduce_fusion.flags(launch),
        cause=f"{launch['model.architecture']} with hidden size {_NANO}, trtllm, FlashInfer 0.6.14",
        impact="at every request: GSM8K 0.78 instead of 0.84 was reported with TP 2",
        fix=allreduce_fusion.forbid(launch),
    )


@rule(
    "ARF210",
    "fusion-with-eagle3-capture",
    Severity.INFO,
    summary="EAGLE3 reads hidden states whose sum is still open with all-reduce fusion",
    needs=(*_ACTIVE, "model.architecture", "source.fusion_layer_boundary", "fusion.contract"),
    evidence=(
        Evidence(
            "source", "srt/models/gpt_oss.py of 0.5.13: aux_hidden_states.append(hidden_states + residual)"
        ),
    ),
    applies=lambda launch: (
        allreduce_fusion.is_on(launch) and str(launch.get(f"args.{_SPEC}") or "").upper() == "EAGLE3"
    ),
)
def eagle3(rule: Rule, launch: Launch) -> Iterator[Finding]:
    """Fusion with EAGLE3 where the model captures hidden states before their sum is completed.

    ## What it checks
    Fusion is on with EAGLE3, the model leaves the sum of its MLP or MoE to the next layer, and it hands
    `hidden_states + residual` to the draft without completing that sum. The layer boundary (0.5.21) completes it.

    ## Why it matters
    The draft then reads partial sums. The target verifies every token, so its output stays right; the draft is accepted
    less often. This follows from the source; the loss was not measured.

    ## When it hurts
    In the accepted length. To tell: compare «accept len» in the decode log with and without fusion.

    ## Fix
    Switch fusion off if the accepted length is better without it.
    """
    if (
        not allreduce_fusion.is_active(launch)
        or launch["source.fusion_layer_boundary"]
        or not allreduce_fusion.defers(launch)
    ):
        return
    source, architecture = launch.source, launch["model.architecture"]
    if source is None or not fusion_contract.captures_unreduced(
        source, architecture, launch.get("model.config")
    ):
        return
    yield rule.finding(
        flags=allreduce_fusion.flags(launch, _SPEC),
        cause=f"{architecture} hands hidden_states + residual to the draft without completing a sum that was left",
        impact="in the accepted length of the draft only; to tell, compare «accept len» with and without fusion",
        fix=allreduce_fusion.forbid(launch),
    )


@rule(
    "ARF106",
    "fusion-with-replicated-dense-layers",
    Severity.ERROR,
    summary="all-reduce fusion sums the token slices of replicated dense layers",
    needs=(
        "args.tp_size",
        "args.nnodes",
        "args.moe_dense_tp_size",
        "gpu.platform",
        "gpu.sm",
        "model.first_k_dense",
        "source.fusion_guards_scattered_mlp",
    ),
    evidence=(issue(20901), issue(19918)),
    applies=lambda launch: allreduce_fusion.is_on(launch) and launch.get("args.moe_dense_tp_size") == 1,
)
def replicated_dense(rule: Rule, launch: Launch) -> Iterator[Finding]:
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
    if not allreduce_fusion.is_active(launch) or not launch["model.first_k_dense"]:
        return
    if launch["source.fusion_guards_scattered_mlp"]:
        return
    where = launch.where("source.fusion_guards_scattered_mlp")
    yield rule.finding(
        flags=allreduce_fusion.flags(launch, "moe_dense_tp_size"),
        cause=f"the first {launch['model.first_k_dense']} layers are dense and replicated, and the sum is left to the "
        f"next layer without a look at that ({where})",
        impact="from the first token: garbage text without a message",
        fix=allreduce_fusion.forbid(launch),
        evidence=(line(launch, "fusion_guards_scattered_mlp"),),
    )

"""ARF: reported hazards of fused all-reduce that a machine brings along: its GPUs, its packages, its groups."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from sglang_guards.launch import allreduce_fusion
from sglang_guards.launch.facts import Launch
from sglang_guards.report.model import Finding, Fix, Severity
from sglang_guards.rules import Rule, rule
from sglang_guards.rules.reports_common import flashinfer_issue, issue, line, vllm_issue

_ACTIVE = ("args.tp_size", "args.nnodes", "gpu.platform", "gpu.sm")


@rule(
    "ARF204",
    "mismatched-flashinfer-packages",
    Severity.WARNING,
    summary="FlashInfer's packages have different versions",
    needs=(
        *_ACTIVE,
        "packages.flashinfer-python",
        "packages.flashinfer-jit-cache",
        "packages.flashinfer-cubin",
    ),
    evidence=(issue(28786),),
    applies=allreduce_fusion.is_on,
)
def packages(rule: Rule, launch: Launch) -> Iterator[Finding]:
    """Fusion with flashinfer-python, flashinfer-jit-cache and flashinfer-cubin of different versions.

    ## What it checks
    The installed versions of the three packages (those that are installed), without the part after «+».

    ## Why it matters
    flashinfer-python calls the compiled kernels of the other two by a binary interface that changes between versions.

    ## When it hurts
    When the workers make the fusion's workspace or run the first fused kernel. Reported with flashinfer-python 0.6.12
    and jit-cache 0.6.11.post1: a crash. FlashInfer refuses some mismatches itself at import.

    ## Fix
    Install the same version of all three.
    """
    if not allreduce_fusion.is_active(launch):
        return
    versions = allreduce_fusion.mismatched_flashinfer(launch)
    if not versions:
        return
    yield rule.finding(
        flags=allreduce_fusion.flags(launch),
        cause=f"installed here: {versions}",
        impact="when the workers make the workspace or run the first fused kernel: a crash was reported with 0.6.12 "
        "and 0.6.11.post1",
        fix=Fix("install the same version of all FlashInfer packages", {}, "display"),
    )


@rule(
    "ARF205",
    "fusion-on-h20",
    Severity.WARNING,
    summary="all-reduce fusion is asked for on H20, where SGLang's own list leaves it off",
    needs=(*_ACTIVE, "gpu.name", "source.fusion_auto_checks_h20"),
    evidence=(flashinfer_issue(2204), issue(26470)),
    applies=lambda launch: allreduce_fusion.is_on(launch) and allreduce_fusion.is_explicit(launch),
)
def h20(rule: Rule, launch: Launch) -> Iterator[Finding]:
    """Fusion set by the operator on H20 in the releases that exclude it.

    ## What it checks
    The fusion flag is set, the GPU is an H20, and the installed source keeps its automatic switch away from H20 (0.5.9
    to 0.5.12 do; 0.5.13 allows it again).

    ## Why it matters
    FlashInfer's kernel of that time hung on H20.

    ## When it hurts
    Under load: the server stops answering. To tell: it does not without the flag.

    ## Fix
    Remove the flag, or use 0.5.13 or later.
    """
    if not allreduce_fusion.is_active(launch) or not allreduce_fusion.is_h20(str(launch["gpu.name"])):
        return
    if not launch["source.fusion_auto_checks_h20"]:
        return
    yield rule.finding(
        flags=allreduce_fusion.flags(launch),
        cause=f"SGLang's own switch leaves H20 out for a hang ({launch.where('source.fusion_auto_checks_h20')})",
        impact="under load: the server stops answering",
        fix=allreduce_fusion.off(launch),
        evidence=(line(launch, "fusion_auto_checks_h20"),),
    )


@rule(
    "ARF209",
    "fusion-workspace-over-the-world",
    Severity.WARNING,
    summary="all-reduce fusion makes its workspace over all ranks although TP is only a part of them",
    needs=(
        *_ACTIVE,
        "args.pp_size",
        "args.dp_size",
        "source.fusion_passes_group",
        "packages.flashinfer-python",
    ),
    evidence=(flashinfer_issue(2955), vllm_issue(45917)),
    applies=allreduce_fusion.is_on,
)
def group(rule: Rule, launch: Launch) -> Iterator[Finding]:
    """Fusion with PP > 1 where the source gives FlashInfer no process group.

    ## What it checks
    Fusion is on with more than one pipeline stage, the installed source does not pass the group to FlashInfer (before
    0.5.12), and FlashInfer is 0.6.10 or later, which then meets on the whole world.

    ## Why it matters
    Ranks of another stage never come to the meeting, or come with another shape.

    ## When it hurts
    At start-up: the warm-up hangs. To tell: it does not without fusion.

    ## Fix
    Switch fusion off.
    """
    if (
        (launch["args.pp_size"] or 1) <= 1
        or not allreduce_fusion.is_active(launch)
        or launch["source.fusion_passes_group"]
    ):
        return
    if allreduce_fusion.flashinfer_version(launch) < Version("0.6.10"):
        return
    yield rule.finding(
        flags=allreduce_fusion.flags(launch, "pp_size"),
        cause=f"no group is passed to FlashInfer {allreduce_fusion.flashinfer_version(launch)} "
        f"({launch.where('source.fusion_passes_group')})",
        impact="at start-up: the warm-up hangs",
        fix=allreduce_fusion.forbid(launch),
        evidence=(line(launch, "fusion_passes_group"),),
    )


@rule(
    "ARF211",
    "fusion-without-nvswitch",
    Severity.WARNING,
    summary="all-reduce fusion may be slow or fail on GPUs without NVSwitch",
    needs=(*_ACTIVE, "gpu.name"),
    evidence=(vllm_issue(48071), vllm_issue(37662)),
    applies=allreduce_fusion.is_on,
)
def no_nvswitch(rule: Rule, launch: Launch) -> Iterator[Finding]:
    """Fusion on PCIe cards and NVL pairs (H100 PCIe, H100 NVL, H200 NVL).

    ## What it checks
    Fusion is on, and the GPU's name says PCIe or NVL: such GPUs come without NVSwitch. SGLang does not look at the
    topology.

    ## Why it matters
    FlashInfer's kernels write into the memory of all peers. On H200 NVL trtllm was reported 34 times slower and mnnvl
    crashed (vLLM #48071); where peers cannot be mapped at all, SGLang logs one warning and goes on without fusion.

    ## When it hurts
    At start-up or in every step. To tell: `nvidia-smi topo -m` shows NV# between all pairs on GPUs with NVSwitch.

    ## Fix
    Switch fusion off where some pairs are joined by PCIe only.
    """
    name = str(launch["gpu.name"])
    if not allreduce_fusion.is_active(launch) or not allreduce_fusion.without_nvswitch(name):
        return
    yield rule.finding(
        flags=allreduce_fusion.flags(launch),
        cause=f"{name} comes without NVSwitch, and SGLang does not look at the topology",
        impact="on H200 NVL 34 times slower with trtllm and a crash with mnnvl were reported; to tell, read "
        "`nvidia-smi topo -m`",
        fix=allreduce_fusion.forbid(launch),
    )

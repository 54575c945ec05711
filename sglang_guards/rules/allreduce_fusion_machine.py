"""ARF: reported hazards of fused all-reduce that a machine brings along: its GPUs, its packages, its groups."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from sglang_guards.launch import allreduce_fusion
from sglang_guards.launch.facts import Launch
from sglang_guards.report.model import Severity
from sglang_guards.rules import Violation, flashinfer_issue, manual, rule, sglang_issue, vllm_issue
from sglang_guards.rules.allreduce_fusion_common import explicit, flags, forbid, off


@rule(
    "ARF204",
    "mismatched-flashinfer-packages",
    Severity.WARNING,
    summary="the installed FlashInfer packages have different versions",
    reports=[sglang_issue(28786)],
    applies=allreduce_fusion.is_on,
)
def packages(launch: Launch) -> Iterator[Violation]:
    """Fusion with flashinfer-python, flashinfer-jit-cache and flashinfer-cubin of different versions.

    ## What it checks
    The installed versions of the three packages (those that are installed), without the part after `+`.

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
    if versions:
        yield Violation(
            flags=flags(launch),
            cause=f"installed here: {versions}",
            impact="a crash when the workers allocate the workspace or run the first fused kernel, as reported with "
            "0.6.12 and 0.6.11.post1",
            fix=manual("install the same version of all FlashInfer packages"),
        )


@rule(
    "ARF205",
    "fusion-on-h20",
    Severity.WARNING,
    summary="all-reduce fusion is requested on H20, which SGLang's own list excludes",
    source={"fusion_auto_checks_h20": True},
    reports=[flashinfer_issue(2204), sglang_issue(26470)],
    applies=explicit,
)
def h20(launch: Launch) -> Iterator[Violation]:
    """Fusion set by the operator on H20 in the releases that exclude it.

    ## What it checks
    The fusion flag is set, the GPU is an H20, and the installed source keeps its automatic switch away from H20 (0.5.9
    to 0.5.12 do; 0.5.13 allows it again).

    ## Why it matters
    FlashInfer's kernel of that time hung on H20.

    ## When it hurts
    Under load: the server stops answering. To confirm: it does not without the flag.

    ## Fix
    Remove the flag, or use 0.5.13 or later.
    """
    if allreduce_fusion.is_active(launch) and allreduce_fusion.is_h20(str(launch["gpu.name"])):
        yield Violation(
            flags=flags(launch),
            cause="SGLang's automatic fusion excludes H20 because of a hang",
            impact="the server stops answering under load",
            fix=off(launch),
        )


@rule(
    "ARF209",
    "fusion-workspace-over-the-world",
    Severity.WARNING,
    summary="all-reduce fusion creates its workspace over all ranks although TP is only a part of them",
    source={"fusion_passes_group": False},
    reports=[flashinfer_issue(2955), vllm_issue(45917)],
    applies=allreduce_fusion.is_on,
)
def group(launch: Launch) -> Iterator[Violation]:
    """Fusion with PP > 1 where the source gives FlashInfer no process group.

    ## What it checks
    Fusion is on with more than one pipeline stage, the installed source does not pass the group to FlashInfer (before
    0.5.12), and FlashInfer is 0.6.10 or later, which then meets on the whole world.

    ## Why it matters
    Ranks of another stage never come to the meeting, or come with another shape.

    ## When it hurts
    At start-up: the warm-up hangs. To confirm: it does not without fusion.

    ## Fix
    Switch fusion off.
    """
    if (launch["args.pp_size"] or 1) <= 1 or not allreduce_fusion.is_active(launch):
        return
    version = allreduce_fusion.flashinfer_version(launch)
    if version >= Version("0.6.10"):
        yield Violation(
            flags=flags(launch, "pp_size"),
            cause=f"SGLang passes no process group to FlashInfer {version}",
            impact="start-up hangs in the warm-up",
            fix=forbid(launch),
        )


@rule(
    "ARF211",
    "fusion-without-nvswitch",
    Severity.WARNING,
    summary="all-reduce fusion may be slow or fail on GPUs without NVSwitch",
    reports=[vllm_issue(48071), vllm_issue(37662)],
    applies=allreduce_fusion.is_on,
)
def no_nvswitch(launch: Launch) -> Iterator[Violation]:
    """Fusion on PCIe cards and NVL pairs (H100 PCIe, H100 NVL, H200 NVL).

    ## What it checks
    Fusion is on, and the GPU's name says PCIe or NVL: such GPUs come without NVSwitch. SGLang does not look at the
    topology.

    ## Why it matters
    FlashInfer's kernels write into the memory of all peers. On H200 NVL trtllm was reported 34 times slower and mnnvl
    crashed (vLLM #48071); where peers cannot be mapped at all, SGLang logs one warning and goes on without fusion.

    ## When it hurts
    At start-up or in every step. To confirm: `nvidia-smi topo -m` shows NV# between all pairs on GPUs with NVSwitch.

    ## Fix
    Switch fusion off where some pairs are joined by PCIe only.
    """
    name = str(launch["gpu.name"])
    if allreduce_fusion.is_active(launch) and allreduce_fusion.without_nvswitch(name):
        yield Violation(
            flags=flags(launch),
            cause=f"{name} comes without NVSwitch, and SGLang does not check the topology",
            impact="on H200 NVL a report measured trtllm 34 times slower and saw mnnvl crash; to confirm, read "
            "`nvidia-smi topo -m`",
            fix=forbid(launch),
        )

"""PAR113: all-to-all backends and what connects the GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sglang_guards.launch.facts import Launch
from sglang_guards.report.model import Severity
from sglang_guards.rules import Violation, rule, sglang_issue, unset

#: GPUs that exist without NVLink between more than two cards. Names as drivers report them.
_PCIE = re.compile(
    r"RTX PRO|GeForce|RTX 6000 Ada|\bL4\b|\bL40S?\b|\bL20\b|\bA10G?\b|\bA40\b|\bT4\b|H100 PCIe|H100 NVL"
)


@rule(
    "PAR113",
    "deepep-without-nvlink",
    Severity.WARNING,
    summary="DeepEP needs peer access between all GPUs of a node, and these have no NVLink",
    reports=(sglang_issue(19033),),
    applies=lambda launch: (
        launch.get("args.moe_a2a_backend") == "deepep" and launch["gpu.platform"] == "cuda"
    ),
)
def without_nvlink(launch: Launch) -> Iterator[Violation]:
    """--moe-a2a-backend deepep on GPUs that PCIe connects.

    ## What it checks
    The all-to-all backend is DeepEP, more than one GPU of a node takes part, and the GPU is of a kind that has no
    NVLink (or a bridge between pairs only).

    ## Why it matters
    DeepEP's kernels inside a node write to the memory of every other GPU. Cards on different PCIe switches refuse
    that.

    ## When it hurts
    After the weights have loaded: DeepEP's buffer cannot be made, and the workers die. To tell: `nvidia-smi topo -p2p
    r` must say OK for every pair.

    ## Example
    `--model-path Qwen/Qwen3-30B-A3B-FP8 --tp 8 --ep-size 8 --moe-a2a-backend deepep` on eight RTX PRO 6000. It works
    without `--moe-a2a-backend`.

    ## Fix
    Remove --moe-a2a-backend.
    """
    name = str(launch["gpu.name"])
    local = min(int(launch["gpu.count"]), int(launch["args.tp_size"]) // max(int(launch["args.nnodes"]), 1))
    if local < 2 or not _PCIE.search(name):
        return
    yield Violation(
        flags=("moe_a2a_backend",),
        cause=f"{name} has no NVLink that joins all {local} GPUs of the node, and DeepEP opens peer access between "
        "every pair",
        impact="where a pair refuses peer access, the workers die once the weights are loaded",
        fix=unset("moe_a2a_backend", safe=False),
    )

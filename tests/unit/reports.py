"""Hand-made reports for the tests of what is done with one."""

from __future__ import annotations

from typing import Any

from sglang_guards.report.model import Evidence, Finding, Fix, FlagVerdict, Ignored, Report, Severity, Skipped

ERROR = Finding(
    "FMS101",
    "fused-sum-out-of-bounds",
    Severity.ERROR,
    "fused MoE sum writes out of bounds, 100% of the time",
    flags=("--enable-fused-moe-sum-all-reduce", "--ep-size 4"),
    cause="each rank holds 64 of 256 experts",
    impact="the first long batch dies",
    fix=Fix("remove --enable-fused-moe-sum-all-reduce", {"enable_fused_moe_sum_all_reduce": None}),
    evidence=(Evidence("source", "fused_moe.py:444"),),
)
WARNING = Finding(
    "FMS301", "fused-sum-slower", Severity.WARNING, "fused MoE sum is slower", cause="acq_rel atomics"
)
INFO = Finding("FMS303", "fused-sum-precision", Severity.INFO, "sums accumulate in bf16")


def report(*findings: Finding, **more: Any) -> Report:
    """A report about SGLang 0.5.15 with everything that a report can hold."""
    made: dict[str, Any] = {
        "passed": ("FMS104",),
        "skipped": (Skipped("RUN101", "gpu.sm"),),
        "ignored": (Ignored("ARF201", Severity.WARNING, "tested"),),
        "notes": ("the draft model's config is not on this machine",),
        "flags": (FlagVerdict("--ep-size", "4", "active", "experts are split", "server_args.py:1"),),
        "applied": 5,
        "known": 9,
        "target": {"sglang": "0.5.15", "path": "/x", "dev_build": False},
        "argv": ("python", "-m", "sglang.launch_server", "--model-path", "a model"),
        "facts": {"args.ep_size": {"value": 4, "from": "given"}},
    }
    return Report(findings=findings, **(made | more))

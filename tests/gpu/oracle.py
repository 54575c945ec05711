"""One cell of the oracle: what the rules predict for a launch, and what its MoE layer really does on this GPU."""

from __future__ import annotations

import functools
from typing import Any

from sglang_guards.bench import kernels
from sglang_guards.judge import judge
from sglang_guards.launch.facts import Fact, Launch
from sglang_guards.settings import Settings
from sglang_guards.source.tree import Source
from tests.gpu.problems import EXPERTS, HIDDEN, INTER, KINDS, Problem, run

#: Largest relative difference between the flag on and off that still counts as the same result.
SAME = 0.03


@functools.cache
def _source() -> Source:
    return Source(kernels.root() / "sglang")


def launch_of(problem: Problem, **args: Any) -> Launch:
    """The launch whose layers are `problem`, with the flag on."""
    import torch

    major, minor = torch.cuda.get_device_capability(0)
    ep = 2 if problem.filtered else 1
    fields: dict[str, Any] = {
        "enable_fused_moe_sum_all_reduce": True,
        "tp_size": ep,
        "ep_size": ep,
        "moe_runner_backend": "triton",
        "moe_a2a_backend": "none",
        "kt_weight_path": None,
        "enable_deterministic_inference": False,
        "rl_on_policy_target": None,
        "enable_paged_experts": False,
        "speculative_algorithm": None,
        "speculative_moe_runner_backend": None,
        "speculative_moe_a2a_backend": None,
        "disable_shared_experts_fusion": False,
        "dtype": "auto",
        "lora_paths": None,
        **args,
    }
    model: dict[str, Any] = {
        "is_moe": True,
        "architecture": "Qwen3MoeForConditionalGeneration",
        "num_experts": EXPERTS,
        "num_shared_experts": 0,
        "top_k": problem.top_k,
        "moe_intermediate_size": INTER * ep,
        "hidden_size": HIDDEN,
        "quant_kind": KINDS[problem.kind],
        "quant_ignored": [],
        "dtype": "float16" if problem.kind == "fp16" else "bfloat16",
        "config": {},
    }
    gpu = {
        "platform": "cuda",
        "name": torch.cuda.get_device_name(0),
        "sm": major * 10 + minor,
        "count": torch.cuda.device_count(),
    }
    lora = {"enabled": problem.hook, "target_modules": ["gate_up_proj", "down_proj"] if problem.hook else []}
    facts = {f"args.{name}": Fact(value, "resolved") for name, value in fields.items()}
    for prefix, values in (
        ("model", model),
        ("gpu", gpu),
        ("lora", lora),
        ("draft_model", {"exists": False}),
    ):
        facts |= {f"{prefix}.{name}": Fact(value, "machine") for name, value in values.items()}
    return Launch(facts, source=_source())


def predicted(problem: Problem) -> str:
    """`out of bounds`, `wrong`, `no effect` or `active and right`, from the findings of the rules. A rule that would
    decide but was skipped gives `unknown: …`."""
    report = judge(launch_of(problem), Settings())
    ids = {finding.id for finding in report.findings}
    deciding = {"FMS101", "FMS102", "FMS103", "FMS201", "FMS202"}
    if unsure := sorted(f"{s.id} ({s.missing})" for s in report.skipped if s.id in deciding):
        return f"unknown: {', '.join(unsure)}"
    if report.notes:
        return f"unknown: {report.notes[0]}"
    if "FMS101" in ids:
        return "out of bounds"
    if ids & {"FMS102", "FMS103"}:
        return "wrong"
    return "no effect" if ids & {"FMS201", "FMS202"} else "active and right"


def observed(problem: Problem) -> str:
    """The same words, from two runs of SGLang's own code that differ in the flag alone."""
    from sglang_guards.bench.layer import relative

    off, on = run(problem, False), run(problem, True)
    if off.guard_rows or off.fused:
        return f"the default itself: {off.guard_rows} guard rows overwritten, fused {off.fused}"
    if on.guard_rows:
        return "out of bounds"
    if not on.fused:
        # No kernel was asked to fuse, so both runs took the same path. (Per-tensor FP8 with filtered experts scales by
        # rows that nothing wrote, so even two runs of the default differ.)
        return "no effect"
    return "active and right" if relative(on.out, off.out) < SAME else "wrong"

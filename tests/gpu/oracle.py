"""One cell of the oracle: what the rules predict for a launch, and what its MoE layer really does on this GPU."""

from __future__ import annotations

import functools
from typing import Any

from sglang_guards.bench import kernels
from sglang_guards.bench.layer import relative
from sglang_guards.judge import judge
from sglang_guards.launch.facts import Fact, Launch
from sglang_guards.settings import Settings
from sglang_guards.source.tree import Source
from tests.gpu.problems import EXPERTS, HIDDEN, INTER, KINDS, Observed, Problem, run

#: Largest relative difference between the flag on and off that still counts as the same result.
SAME = 0.03
#: Largest error against fp32 that still counts as right: what the quantization of activations costs.
RIGHT = {"fp8_block": 0.08, "fp8_tensor": 0.1, "fp8_channel": 0.08, "int8": 0.08}
#: Rules that say that the default path itself is wrong.
DEFAULT_WRONG = {"QNT102"}


@functools.cache
def _source() -> Source:
    return Source(kernels.root() / "sglang")


@functools.cache
def machine() -> dict[str, Any]:
    """The first GPU's name and compute capability, and the SGLang that runs."""
    import torch

    major, minor = torch.cuda.get_device_capability(0)
    return {"device": torch.cuda.get_device_name(0), "sm": major * 10 + minor, "sglang": _source().version}


def launch_of(
    problem: Problem, gpu: dict[str, Any] | None = None, source: Source | None = None, **args: Any
) -> Launch:
    """The launch whose layers are `problem`, with the flag on; by default on this machine with its SGLang."""
    here = gpu or machine()
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
        "quant_block": [128, 128] if problem.kind == "fp8_block" else None,
        "quant_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}
        if "fp8" in problem.kind
        else {},
        "dtype": "float16" if problem.kind == "fp16" else "bfloat16",
        "config": {},
    }
    facts_of_gpu = {"platform": "cuda", "name": here["device"], "sm": here["sm"], "count": 8}
    lora = {"enabled": problem.hook, "target_modules": ["gate_up_proj", "down_proj"] if problem.hook else []}
    facts = {f"args.{name}": Fact(value, "resolved") for name, value in fields.items()}
    for prefix, values in (
        ("model", model),
        ("gpu", facts_of_gpu),
        ("lora", lora),
        ("draft_model", {"exists": False}),
    ):
        facts |= {f"{prefix}.{name}": Fact(value, "machine") for name, value in values.items()}
    return Launch(facts, source=source or _source())


def predicted(problem: Problem, gpu: dict[str, Any] | None = None, source: Source | None = None) -> str:
    """`out of bounds`, `wrong`, `no effect` or `active and right`, from the findings of the rules. A rule that would
    decide but was skipped gives `unknown: …`."""
    report = judge(launch_of(problem, gpu, source), Settings())
    ids = {finding.id for finding in report.findings}
    if ids & DEFAULT_WRONG:
        return "the default is wrong"
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
    """The same words, from runs of SGLang's own code. The default is judged first, against fp32 and against itself with
    used memory: where it is wrong, nothing can be said about the flag."""
    off = run(problem, False)
    if off.guard_rows or off.fused:
        return f"the default itself: {off.guard_rows} guard rows overwritten, fused {off.fused}"
    if default_is_wrong(problem, off):
        return "the default is wrong"
    on = run(problem, True)
    if on.guard_rows:
        return "out of bounds"
    if not on.fused:
        return "no effect"  # no kernel was asked to fuse: both runs took the same path
    same = relative(on.out, off.out) < SAME and on.error < RIGHT.get(problem.kind, 0.05)
    return "active and right" if same else "wrong"


def default_is_wrong(problem: Problem, off: Observed) -> bool:
    """Whether the flag-off result is off against fp32, or changes with what was left in free memory."""
    used = run(problem, False, used_memory=True)
    right = RIGHT.get(problem.kind, 0.05)
    return not (off.error < right and used.error < right and relative(used.out, off.out) < SAME)

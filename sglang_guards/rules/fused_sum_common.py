"""What the fused-sum rules share: when the flag is on, which layers it acts on, and the one fix that settles it."""

from __future__ import annotations

from collections.abc import Callable

from sglang_guards.launch.facts import Launch, MissingFact
from sglang_guards.report.model import Evidence, Fix

FIELD = "enable_fused_moe_sum_all_reduce"
FLAG = "--enable-fused-moe-sum-all-reduce"
#: Facts that decide whether the flag acts on a layer.
LAYER_NEEDS = ("target.reaches_gate", "target.top_k", "draft.reaches_gate", "draft.top_k")
REMOVE = Fix(f"remove {FLAG}", {FIELD: None})
PATCHED_FIX = Fix(f"remove {FLAG}, or apply this release's series from the project's patches/", {FIELD: None})
UPSTREAM_PR = Evidence("report", "https://github.com/sgl-project/sglang/pull/19672")


def flag_on(launch: Launch) -> bool:
    """Whether this launch asks for the fused sum."""
    return launch.get(f"args.{FIELD}") is True


def acts_on(launch: Launch, which: str) -> bool:
    """Whether the gate opens for the layers of `target` or `draft`. Raises MissingFact when that cannot be told."""
    return bool(launch[f"{which}.reaches_gate"]) and int(launch[f"{which}.top_k"]) > 2


def layers(launch: Launch, condition: Callable[[str], bool]) -> list[str]:
    """`target` and/or `draft` where the condition holds.

    A layer that cannot be told does not hide one that can; when none holds for certain, the missing fact is raised.
    """
    found: list[str] = []
    missing: MissingFact | None = None
    for which in ("target", "draft"):
        try:
            if condition(which):
                found.append(which)
        except MissingFact as error:
            missing = missing or error
    if not found and missing is not None:
        raise missing
    return found


def named(found: list[str]) -> str:
    """``the target``, ``the draft`` or ``target and draft``."""
    return "target and draft" if len(found) == 2 else f"the {found[0]}"

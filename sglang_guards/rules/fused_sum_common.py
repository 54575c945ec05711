"""What the fused-sum rules share: when the flag is on, which layers it acts on, and the one fix that settles it."""

from __future__ import annotations

from collections.abc import Callable

from sglang_guards.launch.facts import Launch, MissingFact
from sglang_guards.report.model import Evidence
from sglang_guards.rules import sglang_issue, unset

FIELD = "enable_fused_moe_sum_all_reduce"
REMOVE = unset(FIELD)
PATCHED = unset(FIELD, otherwise="apply this release's series from the project's patches/")
UPSTREAM_PR = sglang_issue(19672)
ON_H200 = "benchmarks/results, one NVIDIA H200, SGLang 0.5.15"
#: The probe without which a release has no such flag.
EXISTS = "flag_exists"


def flag_on(launch: Launch) -> bool:
    """Whether this launch requests the fused sum."""
    return launch[f"args.{FIELD}"] is True


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


def decided_at(launch: Launch, probe: str) -> tuple[Evidence, ...]:
    """The line of the installed source that a probe found, for a rule that asks it nothing else."""
    where = launch.where(f"source.{probe}")
    return (Evidence("source", where),) if where else ()

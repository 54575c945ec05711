"""FMS2xx: launches where the fused MoE sum does nothing, or acts on one of two models only."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_guards.launch.facts import Launch, MissingFact
from sglang_guards.report.model import Severity
from sglang_guards.rules import Violation, read_in, rule
from sglang_guards.rules.fused_sum_common import (
    EXISTS,
    FIELD,
    REMOVE,
    UPSTREAM_PR,
    acts_on,
    decided_at,
    flag_on,
)

_NOTHING = "no runtime effect: the server behaves as if the flag were unset, and SGLang logs nothing"


def _reaches(launch: Launch, which: str) -> bool:
    """Whether a layer gets to the gate; a LoRA runner that does not go through it never does."""
    if not launch[f"{which}.reaches_gate"]:
        return False
    if which == "target" and launch["lora.enabled"] and launch["source.lora_runner_through_gate"] is False:
        return not launch["target.lora_wrapped"]
    return True


@rule(
    "FMS201",
    "fused-sum-without-effect",
    Severity.WARNING,
    summary="fused MoE sum does nothing in this launch",
    reports=[UPSTREAM_PR],
    applies=flag_on,
)
def no_effect(launch: Launch) -> Iterator[Violation]:
    """Fused MoE sum that no layer can reach.

    ## What it checks
    The flag is on and no MoE layer of the target or the draft gets to the code that reads it: another runner backend,
    weight-only int4/int8 experts, an all-to-all backend, a LoRA runner that ignores it, or no MoE layers at all.

    ## Why it matters
    The operator believes in a speed-up that is not there. SGLang logs nothing.

    ## When it hurts
    Never at run time; the flag is dead weight, and it starts to act when the runner changes with an upgrade.

    ## Fix
    Remove the flag. Do not force the Triton runner for its sake: on SM100 a public measurement found that slower by a
    quarter than the native runner.
    """
    if _reaches(launch, "target") or _reaches(launch, "draft"):
        return
    why = str(launch["target.runner_why"])
    if launch["target.reaches_gate"]:
        why = "LoRA wraps the experts, and this SGLang's LoRA runner does not read the flag"
    if launch["draft_model.exists"] and launch["draft.runner_why"] != launch["target.runner_why"]:
        why += f"; for the draft: {launch['draft.runner_why']}"
    yield Violation(
        flags=(FIELD,), cause=why, impact=_NOTHING, fix=REMOVE, evidence=decided_at(launch, "gate_found")
    )


@rule(
    "FMS202",
    "fused-sum-with-top-k-at-most-two",
    Severity.WARNING,
    summary="fused MoE sum does nothing at this top-k",
    source={"gate_checks_top_k": True},
    only_if=EXISTS,
    reports=[UPSTREAM_PR],
    applies=flag_on,
)
def small_top_k(launch: Launch) -> Iterator[Violation]:
    """Fused MoE sum with two experts per token or fewer.

    ## What it checks
    The flag is on, a layer could reach the gate, and its top-k, including fused shared experts, is at most 2.

    ## Why it matters
    The gate asks for more than two experts per token, so Mixtral, Grok-1 or Llama-4 never fuse.

    ## When it hurts
    Never at run time; the flag does nothing and SGLang logs nothing.

    ## Fix
    Remove the flag.
    """
    reaching = [which for which in ("target", "draft") if _reaches(launch, which)]
    if not reaching or any(int(launch[f"{which}.top_k"]) > 2 for which in reaching):
        return
    yield Violation(
        flags=(FIELD,),
        cause=f"{launch.fact(f'{reaching[0]}.top_k').where}, and the fused path needs a top-k above 2",
        impact=_NOTHING,
        fix=REMOVE,
    )


@rule(
    "FMS203",
    "fused-sum-on-one-model-only",
    Severity.WARNING,
    summary="fused MoE sum acts on only one of target and draft",
    reports=[read_in("layers/moe/utils.py: speculative_moe_backend_context")],
    applies=lambda launch: flag_on(launch) and launch["draft_model.exists"] is not False,
)
def one_model_only(launch: Launch) -> Iterator[Violation]:
    """Fused MoE sum that acts on the draft but not on the target, or the other way round.

    ## What it checks
    The flag is on, speculative decoding has a draft with MoE layers, and the gate opens for only one of the two.

    ## Why it matters
    The flag is one switch for both models, while the runner is chosen for each. A flag that was measured on the
    target then changes the draft only.

    ## When it hurts
    No wrong results by itself; the effect is not the one that was measured.

    ## Fix
    Remove the flag, or give both models the same runner.
    """
    if not (launch["target.exists"] and launch["draft.exists"]):
        return
    on = [which for which in ("target", "draft") if acts_on(launch, which)]
    if len(on) != 1:
        return
    other = "draft" if on[0] == "target" else "target"
    yield Violation(
        message=f"fused MoE sum acts on the {on[0]} only",
        flags=(FIELD, "speculative_algorithm"),
        cause=f"{on[0]}: {launch[f'{on[0]}.runner_why']}; {other}: {_why_not(launch, other)}",
        impact=f"the {other}'s layers sum as if the flag were unset",
        fix=REMOVE,
    )


def _why_not(launch: Launch, which: str) -> str:
    try:
        if launch[f"{which}.reaches_gate"]:
            return f"top-k {launch[f'{which}.top_k']} is not above 2"
    except MissingFact:
        pass
    return str(launch[f"{which}.runner_why"])

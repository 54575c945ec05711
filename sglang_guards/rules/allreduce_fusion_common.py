"""What the all-reduce-fusion rules share: whose fusion it is, and how it is switched off."""

from __future__ import annotations

from sglang_guards.launch.allreduce_fusion import (
    BACKEND,
    ENFORCE_OFF,
    SWITCH,
    field,
    is_explicit,
    is_on,
)
from sglang_guards.launch.facts import Launch
from sglang_guards.rules import Change, manual, set_to, unset

SPECULATION = "speculative_algorithm"


def explicit(launch: Launch) -> bool:
    """Whether fusion is on because the operator requested it."""
    return is_on(launch) and is_explicit(launch)


def own_field(launch: Launch) -> str:
    """The field that the operator set."""
    return SWITCH if launch.given(SWITCH) and not launch.given(BACKEND) else BACKEND


def flags(launch: Launch, *fields: str) -> tuple[str, ...]:
    """Fusion as typed, or as SGLang set it, followed by other flags."""
    if is_explicit(launch):
        return (own_field(launch), *fields)
    return (f"{launch.flag(field(launch))} (set by SGLang)", *fields)


def off(launch: Launch) -> Change:
    """Switch fusion off: remove the flag, or forbid what SGLang does by itself."""
    if is_explicit(launch):
        return unset(own_field(launch))
    if f"args.{ENFORCE_OFF}" in launch.facts:
        return set_to(ENFORCE_OFF, True)
    return manual("upgrade SGLang: 0.5.9 has no flag that switches its automatic fusion off")


def forbid(launch: Launch) -> Change:
    """Switch fusion off for good: removing the flag is not enough where SGLang would switch it on by itself."""
    if f"args.{ENFORCE_OFF}" not in launch.facts or not is_explicit(launch):
        return off(launch)
    return unset(own_field(launch)) + set_to(ENFORCE_OFF, True)


def use_trtllm() -> Change:
    """Name the TRT-LLM backend in place of the one that SGLang would choose."""
    return set_to(BACKEND, "trtllm")

"""How ranks are divided: into how many parts an expert is cut, whether attention runs data-parallel."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang_guards.launch.facts import Launch


def experts_tp(tp: int, ep: int, moe_dp: int | None) -> int:
    """The tensor-parallel size of the experts, as SGLang computes it: TP // EP // MoE-DP, here at least 1."""
    return max(1, tp // max(1, ep) // max(1, moe_dp or 1))


def experts_tp_of(launch: Launch) -> int:
    """The same of a launch. Raises MissingFact where a size is not known."""
    sizes = (launch[f"args.{name}"] for name in ("tp_size", "ep_size", "moe_dp_size"))
    tp, ep, moe_dp = (int(size or 1) for size in sizes)
    return experts_tp(tp, ep, moe_dp)


def dp_attention(launch: Launch) -> bool:
    """DP attention by its flag or, from 0.5.22, by its size; one that is known to be on settles it.

    Raises MissingFact where neither is on and one of them is not known.
    """
    flag, size = "args.enable_dp_attention", "args.attn_dp_size"
    if launch.get(flag) or int(launch.get(size) or 1) > 1:
        return True
    return bool(launch[flag]) or int(launch[size] or 1) > 1

"""How ranks are divided; what of it is not known is said to be missing, and never guessed."""

from __future__ import annotations

from typing import Any

import pytest

from sglang_guards.launch.facts import Fact, Launch, MissingFact
from sglang_guards.launch.parallel import dp_attention, experts_tp, experts_tp_of


def launch(**args: Any) -> Launch:
    return Launch({f"args.{name}": Fact(value, "given") for name, value in args.items()})


@pytest.mark.parametrize(
    ("tp", "ep", "moe_dp", "parts"),
    [(8, 1, None, 8), (8, 4, 1, 2), (8, 2, 2, 2), (8, 8, 1, 1), (4, 8, 1, 1), (6, 4, None, 1), (8, 0, 0, 8)],
)
def test_an_expert_is_cut_as_sglang_cuts_it(tp: int, ep: int, moe_dp: int | None, parts: int) -> None:
    assert experts_tp(tp, ep, moe_dp) == parts
    assert experts_tp_of(launch(tp_size=tp, ep_size=ep, moe_dp_size=moe_dp)) == parts


@pytest.mark.parametrize("missing", ["tp_size", "ep_size", "moe_dp_size"])
def test_a_size_that_is_not_known_is_missing(missing: str) -> None:
    sizes = {"tp_size": 8, "ep_size": 4, "moe_dp_size": 1}
    del sizes[missing]
    with pytest.raises(MissingFact) as raised:
        experts_tp_of(launch(**sizes))
    assert raised.value.name == f"args.{missing}"


@pytest.mark.parametrize(
    ("args", "answer"),
    [
        ({"enable_dp_attention": True, "attn_dp_size": None}, True),
        ({"enable_dp_attention": True}, True),
        ({"enable_dp_attention": False, "attn_dp_size": 4}, True),
        ({"attn_dp_size": 4}, True),
        ({"enable_dp_attention": False, "attn_dp_size": 1}, False),
        ({"enable_dp_attention": None, "attn_dp_size": None}, False),
        ({"enable_dp_attention": False}, "args.attn_dp_size"),
        ({"attn_dp_size": 1}, "args.enable_dp_attention"),
        ({}, "args.enable_dp_attention"),
    ],
)
def test_dp_attention_is_three_valued(args: dict[str, Any], answer: bool | str) -> None:
    if isinstance(answer, str):
        with pytest.raises(MissingFact) as raised:
            dp_attention(launch(**args))
        assert raised.value.name == answer
    else:
        assert dp_attention(launch(**args)) is answer

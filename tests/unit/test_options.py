"""Finding and changing flags in an argument list, as argparse reads it."""

from __future__ import annotations

import argparse
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_guards.preflight import options


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser()
    made.add_argument("--tensor-parallel-size", "--tp-size", type=int, default=1)
    made.add_argument("--expert-parallel-size", "--ep-size", "--ep", type=int, default=1)
    made.add_argument("--enable-fused-moe-sum-all-reduce", action="store_true")
    made.add_argument("--strict", action=argparse.BooleanOptionalAction, default=True)
    made.add_argument("--lora-paths", nargs="*")
    made.add_argument("--cuda-graph-bs", nargs="+", type=int)
    made.add_argument("--port", type=int)
    return made


TABLE = options.table(
    parser(),
    {
        "tp_size",
        "ep_size",
        "enable_fused_moe_sum_all_reduce",
        "strict",
        "lora_paths",
        "cuda_graph_bs",
        "port",
    },
)


def edited(typed: str, **changes: Any) -> str:
    words, unsettable = options.edit(typed.split(), changes, TABLE)
    assert not unsettable
    return " ".join(words)


def test_older_names_of_a_dest_are_mapped_to_the_field() -> None:
    assert {o.field for o in TABLE if o.names != ("-h", "--help")} == {
        "tp_size",
        "ep_size",
        "enable_fused_moe_sum_all_reduce",
        "strict",
        "lora_paths",
        "cuda_graph_bs",
        "port",
    }


def test_flags_are_reported_as_typed() -> None:
    args = ["--tp", "4", "--enable-fused", "--ep=2", "--lora-paths", "a=b", "c", "--port", "-1"]
    assert options.typed(args, TABLE) == {
        "tp_size": "--tp 4",
        "enable_fused_moe_sum_all_reduce": "--enable-fused",
        "ep_size": "--ep=2",
        "lora_paths": "--lora-paths a=b c",
        "port": "--port -1",
    }


def test_an_ambiguous_prefix_is_no_flag() -> None:
    assert options.typed(["--e", "2"], TABLE) == {}


@pytest.mark.parametrize(
    ("typed", "changes", "now"),
    [
        ("--tp 4 --enable-fused --port 1", {"enable_fused_moe_sum_all_reduce": None}, "--tp 4 --port 1"),
        ("--tp 4 --enable-fused --port 1", {"enable_fused_moe_sum_all_reduce": False}, "--tp 4 --port 1"),
        ("--tp 4", {"enable_fused_moe_sum_all_reduce": True}, "--tp 4 --enable-fused-moe-sum-all-reduce"),
        ("--tp 4 --port 1", {"tp_size": 8}, "--tp 8 --port 1"),
        ("--tp=4 --port 1", {"tp_size": 8}, "--tp=8 --port 1"),
        ("--tp 4 --port 1 --tp-size 2", {"tp_size": 8}, "--tp 8 --port 1"),
        ("--port 1", {"tp_size": 8}, "--port 1 --tp-size 8"),
        ("--port 1", {"tp_size": None}, "--port 1"),
        ("--strict --port 1", {"strict": False}, "--no-strict --port 1"),
        ("--lora-paths a b --port 1", {"lora_paths": None}, "--port 1"),
        ("--cuda-graph-bs 1 2 --port 1", {"cuda_graph_bs": [4, 8]}, "--cuda-graph-bs 4 8 --port 1"),
    ],
)
def test_edit(typed: str, changes: dict[str, Any], now: str) -> None:
    assert edited(typed, **changes) == now


def test_a_field_without_an_option_cannot_be_set() -> None:
    assert options.edit(["--port", "1"], {"unheard_of": 3}, TABLE) == (("--port", "1"), ["unheard_of"])


@given(
    tp=st.integers(1, 64),
    new=st.integers(1, 64),
    style=st.sampled_from(["--tp {}", "--tp={}", "--tp-size {}", "--tensor-parallel-size={}"]),
    before=st.lists(st.sampled_from(["--port 1", "--ep 2", "--strict", "--cuda-graph-bs 1 2"]), unique=True),
)
def test_argparse_reads_the_new_value_and_nothing_else_changes(
    tp: int, new: int, style: str, before: list[str]
) -> None:
    typed = [*" ".join(before).split(), *style.format(tp).split()]
    old = vars(parser().parse_args(typed))
    words, _ = options.edit(typed, {"tp_size": new}, TABLE)
    assert vars(parser().parse_args(list(words))) == old | {"tensor_parallel_size": new}

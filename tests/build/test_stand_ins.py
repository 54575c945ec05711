"""A stand-in can be imported, called and stored; whatever would decide something raises."""

from __future__ import annotations

import importlib
import operator
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sglang_guards.build import stand_ins


@pytest.fixture
def package() -> Iterator[Any]:
    """`flashinfer`, which is not installed here, and what was imported of it taken away again."""
    stand_ins.forget()
    with stand_ins.installed(("flashinfer", "deep_gemm"), units=132):
        yield importlib.import_module("flashinfer")
    for name in [n for n in sys.modules if n.partition(".")[0] in ("flashinfer", "deep_gemm")]:
        del sys.modules[name]
    stand_ins.forget()


def test_names_and_calls_give_further_stand_ins(package: Any) -> None:
    from flashinfer.fused_moe import trtllm_moe

    made = trtllm_moe(1, 2)[0].value + 3
    assert isinstance(made, stand_ins.StandIn)
    assert stand_ins.asked == []


QUESTIONS: dict[str, Callable[[Any], Any]] = {
    "truth": bool,
    "length": len,
    "items": list,
    "membership": lambda value: 1 in value,
    "membership of itself": lambda value: value in {"fa3", "triton"},
    "number": int,
    "index": operator.index,
    "order": lambda value: value < 3,
    "equality with a value": lambda value: value == 3,
    "equality with another": lambda value: value == stand_ins.value_of("another"),
    "inequality": lambda value: value != "x",
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_cannot_be_answered_and_is_remembered(package: Any, question: str) -> None:
    value = package.some_value
    with pytest.raises(stand_ins.CannotTell, match=r"flashinfer\.some_value"):
        QUESTIONS[question](value)
    assert len(stand_ins.asked) == 1


def test_except_exception_does_not_swallow_a_question(package: Any) -> None:
    def probe() -> str:
        try:
            return "new" if package.feature_level > 2 else "old"
        except Exception:  # noqa: BLE001 - as model code does
            return "none"

    with pytest.raises(stand_ins.CannotTell):
        probe()


def test_a_stand_in_is_itself_and_no_class_or_function(package: Any) -> None:
    assert package.kernel == package.kernel
    assert (package.kernel == len) is False
    assert (package.kernel == dict) is False  # noqa: E721


def test_classes_can_be_derived_from_and_their_members_compared_by_identity(package: Any) -> None:
    class Mine(package.Planner):  # type: ignore[misc]
        def level(self) -> int:
            return 2

    assert Mine(1, two=2).level() == 2
    assert package.ActivationType.Silu is package.ActivationType.Silu
    with pytest.raises(stand_ins.CannotTell):
        list(package.ActivationType)


def test_a_table_can_be_written_with_a_stand_in_as_key_and_not_read(package: Any) -> None:
    key = package.PassConfigKey.FAST
    table = {key: True, "other": False}
    assert next(iter(table)) is key
    assert stand_ins.asked == []
    with pytest.raises(stand_ins.CannotTell):
        table.get(key)
    with pytest.raises(stand_ins.CannotTell):
        table[key]
    with pytest.raises(stand_ins.CannotTell):
        {key, "other"}  # noqa: B018


def test_a_known_value_is_answered(package: Any) -> None:
    import deep_gemm  # type: ignore[import-not-found]

    assert deep_gemm.get_num_sms() == 132


def test_as_decorator_the_function_stays(package: Any) -> None:
    @package.register_op
    def kernel() -> int:
        return 7

    assert kernel() == 7


def test_involvement_is_found_through_the_chain_of_causes(package: Any) -> None:
    def refuse() -> None:
        try:
            bool(package.flag)
        except stand_ins.CannotTell as error:
            raise ValueError("unsupported") from error

    with pytest.raises(ValueError, match="unsupported") as refused:
        refuse()
    stand_ins.forget()
    assert stand_ins.involved(refused.value)
    assert not stand_ins.involved(ValueError("plain"))

"""The sixteen refactorings: an answer stays, becomes right, or becomes unknown; it never becomes wrong."""

from __future__ import annotations

import pytest

from tests.contract.tables import source
from tests.mutation.overlay import Edited
from tests.mutation.refactorings import REFACTORINGS, Refactoring


@pytest.mark.parametrize("one", REFACTORINGS, ids=lambda one: one.name)
def test_no_wrong_answer(one: Refactoring) -> None:
    base = source(one.release)
    texts = one.edit(base)
    assert texts
    assert any(base.text(rel) != text for rel, text in texts.items())
    edited = Edited(base, texts)
    after = {name: edited.ask(name) for name in one.right}
    wrong = {name: a for name, a in after.items() if a.value is not None and a.value != one.right[name]}
    assert not wrong
    assert all(answer.detail for answer in after.values() if answer.value is None)


def test_the_list_of_architectures_is_followed_or_unknown() -> None:
    one = next(one for one in REFACTORINGS if one.name.startswith("m11"))
    base = source(one.release)
    names = base.list("fusion_auto_architectures").values
    assert names
    assert Edited(base, one.edit(base)).list("fusion_auto_architectures").values in (names, None)


def test_the_alias_of_a_flag_is_the_field() -> None:
    from sglang_guards.source.probes.args_resolution import declared_as

    one = next(one for one in REFACTORINGS if one.name.startswith("m10"))
    base = source(one.release)
    edited = Edited(base, one.edit(base))
    assert declared_as(edited, "enable_fused_moe_sum_all_reduce") == "sum_experts_in_the_gemm"
    assert declared_as(base, "enable_fused_moe_sum_all_reduce") is None

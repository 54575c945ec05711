from __future__ import annotations

import multiprocessing
import os
import sys
from types import ModuleType
from typing import Any

import pytest

from sglang_guards.hook import attach, patching


class Owner:
    def method(self, value: int) -> int:
        return value + 1

    @classmethod
    def made(cls) -> int:
        return 1


def test_after_keeps_the_result_and_wraps_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Owner, "method", Owner.method)  # restored at the end
    seen: list[Any] = []
    assert patching.after(Owner, "method", lambda result, *args: seen.append((result, args[1:])))
    assert patching.after(Owner, "method", lambda *args: seen.append("twice"))
    assert Owner().method(2) == 3
    assert seen == [(3, (2,))]
    assert Owner.method.__name__ == "method"


@pytest.mark.parametrize("name", ["absent", "made"])
def test_what_is_no_plain_function_is_left_alone(name: str) -> None:
    assert not patching.after(Owner, name, lambda *args: None)
    assert Owner.made() == 1


def test_copies_in_sglang_modules_are_replaced_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def switch() -> int:
        return 1

    modules = {name: ModuleType(name) for name in ("sglang.owner", "sglang.copy", "other.copy")}
    for name, module in modules.items():
        vars(module)["switch"] = switch
        monkeypatch.setitem(sys.modules, name, module)
    assert patching.around(modules["sglang.owner"], "switch", lambda original: original() + 10)
    assert [vars(modules[name])["switch"]() for name in modules] == [11, 11, 1]


def test_a_process_of_ours_is_no_worker_of_sglang() -> None:
    assert not attach._is_worker()


@pytest.mark.parametrize(
    ("module", "expected"),
    [("sglang.srt.managers.scheduler", 1), ("sglang.bench_one_batch_server", 0), ("verl.workers", 0)],
)
def test_children_that_sglang_starts_as_workers_are_recognised(module: str, expected: int) -> None:
    def target() -> None:
        os._exit(int(attach._is_worker()))

    target.__module__ = module
    child = multiprocessing.get_context("fork").Process(target=target)
    child.start()
    child.join()
    assert child.exitcode == expected


def test_a_broken_list_leaves_sglang_its_own_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "sglang_guards.hook.auto_enable", None)  # importing it raises
    monkeypatch.delattr("sglang_guards.hook.auto_enable", raising=False)
    assert attach._around_auto_enable(lambda view: {"a": view}, 1) == {"a": 1}
    attach.after_model_adjustments(None, object())
    assert caplog.text.count("auto-enable list is not active") == 2

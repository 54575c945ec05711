"""Which errors are SGLang's own no: raised on purpose in its files, with nothing of ours in the cause."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sglang_guards.build import blame, stand_ins

#: Code as it stands in SGLang's files, one function per way to fail.
TREE = """
import torch

class Refused(ValueError):
    pass

def check(width, block, prefix="model.layers.3.mlp"):
    if width % block != 0:
        raise ValueError(f"width {width} is not divisible by block {block}")

def asserts(width, prefix=""):
    assert width == 3, "only width 3 is supported"

def asserts_without_words(width):
    assert width == 3

def looks_up(table, name):
    try:
        return table[name]
    except KeyError:
        raise ValueError(f"{name} is not supported")

def lacks_a_key(config):
    return config["exclude_modules"]

def meta_only():
    return torch.empty(3, device="meta").sum().item()

def wraps_meta():
    try:
        meta_only()
    except Exception as error:
        raise ValueError("cannot count") from error

def imports():
    try:
        import a_package_that_nobody_has
    except ImportError:
        raise RuntimeError("a package is missing")

def is_cuda():
    return True

def on_this_platform():
    if is_cuda():
        raise ValueError("not supported on this GPU; remove --enable-a-thing")

def on_gpu(tensor):
    if tensor.device.type != "cuda":
        raise ValueError("expects a tensor on the GPU")

def asks(runner):
    if runner.limit is not None:
        raise NotImplementedError("a limit is not supported")

def swallows(kernels):
    try:
        level = 1 if kernels.level else 0
    except BaseException:
        level = 0
    if level == 0:
        raise ValueError("level 0 is not supported")

def from_config(config):
    raise ValueError("the export key should be included")
"""


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    pytest.importorskip("torch")
    package = tmp_path / "sglang"
    package.mkdir()
    file = package / "layer.py"
    file.write_text(TREE, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("layer_of_the_tree", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(blame, "_roots", lambda: (f"{package}/",))
    monkeypatch.setitem(sys.modules, "layer_of_the_tree", module)
    stand_ins.forget()
    yield module
    stand_ins.forget()


def caught(function: Any, *args: Any) -> BaseException:
    with pytest.raises(BaseException) as info:  # noqa: PT011  (any of them)
        function(*args)
    return info.value


def test_a_raise_is_a_refusal_with_its_words_place_and_layer(tree: ModuleType) -> None:
    no = blame.refusal(caught(tree.check, 320, 128))
    assert no is not None
    assert no.message == "width 320 is not divisible by block 128"
    assert no.where == "sglang/layer.py:9"
    assert no.layer == "model.layers.3.mlp"
    assert no.type == "ValueError"


@pytest.mark.parametrize(
    ("function", "args", "words"),
    [
        ("asserts", (4,), "only width 3 is supported"),
        ("asserts_without_words", (4,), "assert width == 3"),
        ("looks_up", ({}, "fa5"), "fa5 is not supported"),
        ("on_this_platform", (), "not supported on this GPU; remove --enable-a-thing"),
    ],
)
def test_other_ways_to_say_no(tree: ModuleType, function: str, args: tuple[Any, ...], words: str) -> None:
    no = blame.refusal(caught(getattr(tree, function), *args))
    assert no is not None
    assert no.message == words


OURS: dict[str, tuple[Any, ...]] = {
    "lacks_a_key": ({},),
    "meta_only": (),
    "wraps_meta": (),
    "imports": (),
    "asks": (stand_ins.value_of("ModelRunner"),),
    "swallows": (stand_ins.value_of("sgl_kernel"),),
    "from_config": ({},),
}


@pytest.mark.parametrize("function", OURS)
def test_what_a_gpu_machine_would_not_meet_is_no_refusal(tree: ModuleType, function: str) -> None:
    error = caught(getattr(tree, function), *OURS[function])
    assert blame.refusal(error) is None
    assert blame.trouble(error)


def test_a_tensor_that_is_not_on_the_gpu_is_ours(tree: ModuleType) -> None:
    import torch

    assert blame.refusal(caught(tree.on_gpu, torch.empty(1, device="meta"))) is None


def test_an_error_outside_the_tree_is_ours() -> None:
    stand_ins.forget()
    assert blame.refusal(caught(int, "x")) is None


def test_a_set_in_a_message_is_in_order() -> None:
    assert blame.words(ValueError("one of {'triton', 'fa4'}")) == "one of {'fa4', 'triton'}"

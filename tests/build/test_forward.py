"""A missing runner is a fault only where every way through `apply` uses it."""

from __future__ import annotations

from typing import Any

import pytest

from sglang_guards.build import forward


def backend_is_kernel() -> bool:
    return False


class Layer:
    pass


class Method:
    use_kernel = False
    runner: Any

    def needs(self) -> bool:
        return False


class Always(Method):
    def apply(self, layer: Any, x: Any) -> Any:
        quant_info = layer
        return self.runner.run(x, quant_info)


class Never(Method):
    def apply(self, layer: Any, x: Any) -> Any:
        return x + layer


class KernelChosen(Method):
    use_kernel = True

    def apply(self, layer: Any, x: Any) -> Any:
        if self.use_kernel:
            return x
        return self.runner.run(x)


class KernelNotChosen(KernelChosen):
    use_kernel = False


class OpenTest(Method):
    def apply(self, layer: Any, x: Any) -> Any:
        if x.shape[0] > 3:
            return x
        return self.runner.run(x)


class GlobalTest(Method):
    def apply(self, layer: Any, x: Any) -> Any:
        if backend_is_kernel():
            return x
        return self.runner.run(x)


class Guarded(Method):
    def apply(self, layer: Any, x: Any) -> Any:
        if getattr(self, "runner", None) is not None and self.runner.ready:
            return self.runner.run(x)
        return x


class ThroughAHelper(Method):
    def apply(self, layer: Any, x: Any) -> Any:
        return self.run_it(x)

    def run_it(self, x: Any) -> Any:
        return self.runner.run(x)


class InATry(Method):
    def apply(self, layer: Any, x: Any) -> Any:
        try:
            return self.runner.run(x)
        except AttributeError:
            return x


class RaisesElse(Method):
    def apply(self, layer: Any, x: Any) -> Any:
        if x.dim() == 3:
            raise NotImplementedError("3-D input")
        return self.runner.run(x)


class Scheme(Method):
    def apply_weights(self, layer: Any, x: Any) -> Any:
        return self.runner.run(x)


@pytest.mark.parametrize(
    ("method", "fault"),
    [
        (Always, True), (Never, False), (KernelChosen, False), (KernelNotChosen, True), (OpenTest, False),
        (GlobalTest, True), (Guarded, False), (ThroughAHelper, True), (InATry, False), (RaisesElse, True),
        (Scheme, True),
    ],
)  # fmt: skip
def test_only_where_every_way_ends_at_the_runner(method: type[Method], fault: bool) -> None:
    assert (forward.needs_runner(method(), Layer()) is not None) is fault


@pytest.mark.parametrize(
    ("method", "doubt"),
    [
        (Always, False), (Never, False), (KernelChosen, False), (OpenTest, True), (GlobalTest, False),
        (RaisesElse, False),
    ],
)  # fmt: skip
def test_a_runner_that_may_be_passed_by(method: type[Method], doubt: bool) -> None:
    assert forward.may_pass_by_runner(method(), Layer()) is doubt

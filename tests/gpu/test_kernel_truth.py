"""The fused sum on a GPU: right results, the known faults as shipped, and each of them gone with the patches."""

from __future__ import annotations

import pytest

from tests.gpu.problems import Problem, run

pytestmark = pytest.mark.gpu


def _shape(dtype: str, top_k: int):  # type: ignore[no-untyped-def]
    from sglang_guards.bench.shapes import MoeShape

    return MoeShape("test", 16, 256, 512, top_k, dtype)


@pytest.mark.parametrize("tokens", [1, 7, 64, 300, 2048])
@pytest.mark.parametrize("top_k", [3, 8])
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp8"])
@pytest.mark.parametrize("which", ["installed", "relaxed", "series"])
def test_the_fused_sum_is_right(which: str, dtype: str, top_k: int, tokens: int) -> None:
    import torch

    from sglang_guards.bench import cell, kernels, layer
    from tests.gpu import series
    from tests.gpu.problems import flag_set, original, setup

    setup()
    if which == "series":
        module = series.module()
    elif which == "relaxed":
        module = kernels.load("relaxed", kernels.relaxed(kernels.texts(kernels.root())), kernels.root())
    else:
        module = original()
    batch = layer.Batch(layer.Weights(_shape(dtype, top_k)), tokens)
    rows = torch.arange(0, tokens, max(1, tokens // 64), device="cuda")
    reference = batch.reference(rows)
    with flag_set(module, True):
        got = batch.call(module)
    with flag_set(module, False):
        plain = batch.call(module)
    assert layer.relative(got[rows], reference) < cell.TOLERANCE[dtype]
    assert layer.relative(got, plain) < 0.01


@pytest.mark.parametrize("kind", ["bf16", "fp16", "fp8_block"])
def test_filtered_experts_store_out_of_bounds_unless_guarded(kind: str) -> None:
    from sglang_guards.bench import kernels
    from sglang_guards.source.tree import Source
    from tests.gpu import series

    guarded = Source(kernels.root() / "sglang").ask("zero_store_guarded").value
    problem = Problem(kind, 40, 8, filtered=True)
    assert run(problem, False).guard_rows == 0
    assert (run(problem, True).guard_rows == 0) is guarded
    patched = run(problem, True, series.module())
    assert patched.guard_rows == 0
    assert patched.fused
    _close(patched.out, run(problem, False).out)


def test_the_lora_hook_of_the_down_projection_is_dropped_unless_patched() -> None:
    from tests.gpu import series

    problem = Problem("bf16", 64, 8, hook=True)
    plain, shifted = run(Problem("bf16", 64, 8, through_core=True), False), run(problem, False)
    assert float((shifted.out - plain.out).float().mean()) == pytest.approx(8, abs=0.1)
    dropped = run(problem, True)
    assert dropped.fused
    assert float((dropped.out - plain.out).float().mean()) == pytest.approx(0, abs=0.1)
    kept = run(problem, True, series.module())
    assert float((kept.out - plain.out).float().mean()) == pytest.approx(8, abs=0.1)


def test_the_default_repeats_bit_by_bit_and_the_fused_sum_does_not() -> None:
    import torch

    problem = Problem("bf16", 512, 8)
    plain = [run(problem, False).out for _ in range(4)]
    fused = [run(problem, True).out for _ in range(12)]
    assert all(torch.equal(plain[0], other) for other in plain)
    assert any(not torch.equal(fused[0], other) for other in fused)


def test_the_rules_know_that_it_does_not_repeat() -> None:
    from sglang_guards.judge import judge
    from sglang_guards.settings import Settings
    from tests.gpu.oracle import launch_of

    report = judge(launch_of(Problem("bf16", 512, 8), enable_deterministic_inference=True), Settings())
    assert "FMS104" in {finding.id for finding in report.findings}


def _close(a, b) -> None:  # type: ignore[no-untyped-def]
    from sglang_guards.bench.layer import relative

    assert relative(a, b) < 0.01


@pytest.mark.parametrize("top_k", [2, 3, 8])
@pytest.mark.parametrize("tokens", [5, 40, 512])
@pytest.mark.parametrize("flag", [False, True])
def test_the_series_scales_by_rows_that_were_written(flag: bool, tokens: int, top_k: int) -> None:
    """Per-tensor FP8 with other ranks' experts: right whatever was left in free memory."""
    from tests.gpu import series
    from tests.gpu.oracle import RIGHT

    problem = Problem("fp8_tensor", tokens, top_k, filtered=True)
    clean = run(problem, flag, series.module())
    used = run(problem, flag, series.module(), used_memory=True)
    assert clean.error < RIGHT["fp8_tensor"]
    assert used.error < RIGHT["fp8_tensor"]
    _close(used.out, clean.out)


def test_the_default_is_shown_to_depend_on_what_was_left_in_memory() -> None:
    """The fault that the series mends is there as installed, so that the test above can fail."""
    from tests.gpu.oracle import RIGHT

    assert (
        run(Problem("fp8_tensor", 512, 8, filtered=True), False, used_memory=True).error > RIGHT["fp8_tensor"]
    )
    assert run(Problem("fp8_tensor", 512, 8), False, used_memory=True).error < RIGHT["fp8_tensor"]

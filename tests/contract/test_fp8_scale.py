"""QNT102's probe: every release takes the scale over all rows; another make of the scale is not taken for the fault.

That a patched tree answers False is held by tests/patches/test_carried.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_guards import source as engine
from tests.contract.tables import line_of, registered, source
from tests.trees import RELEASES, tree

PROBE = "fp8_scale_reads_unwritten_rows"


def test_every_probe_has_an_expectation() -> None:
    assert registered("fp8_scale") == {PROBE}


@pytest.mark.parametrize("release", RELEASES)
def test_every_release_takes_it_over_all_rows(release: str) -> None:
    answer = source(release).ask(PROBE)
    assert answer.value is True
    assert answer.where is not None
    assert "scaled_fp8_quant(" in line_of(source(release), answer.where)


@pytest.mark.parametrize(
    ("release", "line"),
    [
        ("0.5.15", "    a2_scale = our_scale(intermediate_cache2)\n"),
        ("0.5.23", "    a2_scale = a2_scale * 2\n"),
    ],
)
def test_a_scale_of_another_make_is_unknown(release: str, line: str, tmp_path: Path) -> None:
    rel = Path("sglang/srt/layers/moe/moe_runner/triton_utils/fused_moe.py")
    kernels = (
        "sglang/kernels/ops/moe/fused_moe_triton_kernels.py",
        rel.with_name("fused_moe_triton_kernels.py"),
    )
    for name in (*kernels, rel):
        here = tree(release) / name
        if here.is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(here.read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "sglang/srt").mkdir(parents=True, exist_ok=True)
    text = (tmp_path / rel).read_text(encoding="utf-8")
    mark = "    out_slice = None\n    if use_fused_moe_sum_all_reduce:"
    assert text.count(mark) == 1
    assert ask(tmp_path) is True
    (tmp_path / rel).write_text(text.replace(mark, line + mark), encoding="utf-8")
    assert ask(tmp_path) is None


def ask(root: Path) -> bool | None:
    found = engine.find(root)
    assert found is not None
    return found.ask(PROBE).value

"""Marks of the patches: no published release has one, and a scale of another make is not taken for either."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_guards import source as engine
from tests.contract.tables import Table, answers, check_places, expected, line_of, registered, source
from tests.trees import RELEASES, tree

TABLE: Table = {
    "fusion_lists_wrappers": {"0.5.9": False},
    "fused_sum_in_bands": {"0.5.9": False},
    "fp8_scale_of_routed_rows": {"0.5.9": False},
}


def test_every_probe_has_an_expectation() -> None:
    assert set(TABLE) == registered("series_marks")


@pytest.mark.parametrize("release", RELEASES)
def test_answers(release: str) -> None:
    assert answers(TABLE, source(release)) == expected(TABLE, release)
    check_places({probe: source(release).ask(probe) for probe in TABLE}, source(release))


@pytest.mark.parametrize("release", RELEASES)
def test_the_place_is_the_scale_of_the_down_projection(release: str) -> None:
    where = source(release).ask("fp8_scale_of_routed_rows").where
    assert where is not None
    assert line_of(source(release), where).strip() == "a2_scale,"


@pytest.mark.parametrize(
    ("release", "line"),
    [
        ("0.5.15", "    a2_scale = our_scale(intermediate_cache2)\n"),
        ("0.5.23", "    a2_scale = a2_scale * 2\n"),
    ],
)
def test_a_scale_of_another_make_is_unknown(release: str, line: str, tmp_path: Path) -> None:
    rel = Path("sglang/srt/layers/moe/moe_runner/triton_utils/fused_moe.py")
    for name in ("sglang/srt/server_args.py", "sglang/srt/arg_groups/fields/moe.py", rel):
        here = tree(release) / name
        if here.is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(here.read_text(encoding="utf-8"), encoding="utf-8")
    for folder in ("sglang/srt/arg_groups/fields",):
        for here in (tree(release) / folder).glob("*.py"):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / here.name).write_text(here.read_text(encoding="utf-8"), encoding="utf-8")
    text = (tmp_path / rel).read_text(encoding="utf-8")
    mark = "    out_slice = None\n    if use_fused_moe_sum_all_reduce:"
    assert text.count(mark) == 1
    (tmp_path / rel).write_text(text.replace(mark, line + mark), encoding="utf-8")
    found = engine.find(tmp_path)
    assert found is not None
    assert found.ask("fp8_scale_of_routed_rows").value is None

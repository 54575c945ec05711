"""Marks of the patches: no published release has one."""

from __future__ import annotations

import pytest

from tests.contract.tables import Table, answers, check_places, expected, registered, source
from tests.trees import RELEASES

TABLE: Table = {
    "fusion_lists_wrappers": {"0.5.9": False},
    "fused_sum_in_bands": {"0.5.9": False},
}


def test_every_probe_has_an_expectation() -> None:
    assert set(TABLE) == registered("series_marks")


@pytest.mark.parametrize("release", RELEASES)
def test_answers(release: str) -> None:
    assert answers(TABLE, source(release)) == expected(TABLE, release)
    check_places({probe: source(release).ask(probe) for probe in TABLE}, source(release))

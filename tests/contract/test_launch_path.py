"""From an expert layer to its runner and from the launcher to the hook: seen in every release."""

from __future__ import annotations

import pytest

from tests.contract.tables import Table, answers, check_places, expected, registered, source
from tests.trees import RELEASES

TABLE: Table = {
    "layer_runs_quant_method": {"0.5.9": True},
    "unquant_auto_is_triton": {"0.5.9": True},
    "fp8_auto_is_triton": {"0.5.9": True},
    "launcher_calls_validator": {"0.5.9": True},
}


def test_every_probe_has_an_expectation() -> None:
    assert set(TABLE) == registered("launch_path")


@pytest.mark.parametrize("release", RELEASES)
def test_answers(release: str) -> None:
    tree = source(release)
    assert answers(TABLE, tree) == expected(TABLE, release)
    check_places({probe: tree.ask(probe) for probe in TABLE}, tree)

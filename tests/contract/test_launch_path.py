"""From an expert layer to its runner and from the launcher to the hook: seen in every release."""

from __future__ import annotations

import pytest

from sglang_guards.source.probes.quant_method import CONFIGS
from tests.contract.tables import Table, answers, check_places, expected, registered, source
from tests.trees import RELEASES

TABLE: Table = {
    "layer_runs_quant_method": {"0.5.9": True},
    "unquant_auto_is_triton": {"0.5.9": True},
    "fp8_auto_is_triton": {"0.5.9": True},
    "launcher_calls_validator": {"0.5.9": True},
    "layer_takes_configured_method": {"0.5.9": True},
}


def test_every_probe_has_an_expectation() -> None:
    assert set(TABLE) == registered("launch_path", "quant_method") - {"config_gives_its_method"}


@pytest.mark.parametrize("release", RELEASES)
def test_answers(release: str) -> None:
    tree = source(release)
    assert answers(TABLE, tree) == expected(TABLE, release)
    check_places({probe: tree.ask(probe) for probe in TABLE}, tree)


@pytest.mark.parametrize("release", RELEASES)
def test_every_config_in_the_table_gives_the_method_that_is_expected(release: str) -> None:
    tree = source(release)
    found = {kind: tree.ask("config_gives_its_method", kind=kind) for kind in CONFIGS}
    assert {kind: answer.value for kind, answer in found.items()} == dict.fromkeys(CONFIGS, True)
    check_places(found, tree)
    for kind, answer in found.items():
        assert set(answer.detail.split(", ")) <= CONFIGS[kind].methods

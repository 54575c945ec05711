"""Where each release resolves its arguments and how a decision is written there (audit parts C.1, C.3 and D.2)."""

from __future__ import annotations

import pytest

from tests.contract.tables import Table, answers, check_places, expected, line_of, registered, source
from tests.trees import RELEASES

TABLE: Table = {
    "plugins_framework": {"0.5.9": False, "0.5.11": True},
    "resolves_in_post_init": {"0.5.9": True, "0.5.19": False},
    "has_resolve_once": {"0.5.9": False, "0.5.19": True},
    "has_resolving_view": {"0.5.9": False, "0.5.19": True},
    "has_declare_late_resolution": {"0.5.9": False, "0.5.18": True, "0.5.20": False},
    "has_declare_resolution": {"0.5.9": False, "0.5.19": True},
    "has_override": {"0.5.9": False, "0.5.16": True, "0.5.18": False},
    "check_server_args_exists": {"0.5.9": True},
    "auto_enable_pass_exists": {"0.5.9": False, "0.5.15": True},
}


def test_every_probe_has_an_expectation() -> None:
    assert set(TABLE) == registered("args_resolution")


@pytest.mark.parametrize("release", RELEASES)
def test_answers(release: str) -> None:
    assert answers(TABLE, source(release)) == expected(TABLE, release)


@pytest.mark.parametrize("release", RELEASES)
def test_places_exist(release: str) -> None:
    tree = source(release)
    check_places({probe: tree.ask(probe) for probe in TABLE}, tree)
    assert "def check_server_args" in line_of(tree, tree.ask("check_server_args_exists").where or "")

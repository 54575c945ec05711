"""docs/data/probes.json, which the releases page is made of, is what the releases' sources say."""

from __future__ import annotations

import pytest

from tests.contract.tables import source
from tests.trees import RELEASES
from tools import flags_page, truth_table


@pytest.mark.parametrize("release", RELEASES)
def test_the_file_equals_the_probes(release: str) -> None:
    held, tree = truth_table.load(), source(release)
    assert release in held["answers"], "run: python tools/truth_table.py"
    assert truth_table.ask(tree) == held["answers"][release]
    assert truth_table.lines(tree, flags_page.FIELDS) == held["lines"][release]

"""Every probe that cites an `if`: with its test turned round the answer is another one, or unknown."""

from __future__ import annotations

import pytest

from tests.contract.tables import source
from tests.mutation.guards import survivors
from tests.mutation.suite import Suite


@pytest.mark.parametrize("release", ["0.5.15", "0.5.23"])
def test_no_answer_survives_its_guard_turned_round(release: str) -> None:
    asked, stayed = survivors(Suite(source(release)))
    assert len(asked) >= 20
    assert stayed == []

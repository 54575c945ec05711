"""`tools/new_release.py`, shown by replaying releases that are known already."""

from __future__ import annotations

import pytest

from tests.contract.tables import source
from tools import new_release


def test_the_newest_release_replayed(capsys: pytest.CaptureFixture[str]) -> None:
    found = {c.probe: c for c in new_release.changes(source("0.5.22"), source("0.5.23"))}
    assert (found["zero_store_guarded"].before[0], found["zero_store_guarded"].after[0]) == (False, True)
    assert "fused_add_relaxed" not in found  # the atomics are as they were
    assert new_release.main(["0.5.23", "--after", "0.5.22"]) == int(any(c.lost for c in found.values()))
    out = capsys.readouterr().out
    assert '"zero_store_guarded": {…, "0.5.23": True},' in out
    assert "tests/releases.py: _release" not in out, "it is in the table already"


def test_a_lost_answer_comes_first_and_fails() -> None:
    """0.5.9 has no fused sum: going back there loses the answers about it."""
    found = new_release.changes(source("0.5.10"), source("0.5.9"))
    assert found[0].lost
    text = "\n".join(new_release.report("9.9.9", "0.5.10", found))
    assert text.index("no answer any more") < text.index("left to do")
    assert '_release("9.9.9"' in text


def test_every_changed_answer_has_a_table_to_go_into() -> None:
    for change in new_release.changes(source("0.5.19"), source("0.5.20")):
        if not isinstance(change.after[0], list) and not isinstance(change.before[0], list):
            assert new_release.table_of(change.probe), change.probe

"""Flags that operators ask about: who reads them in each release."""

from __future__ import annotations

import pytest

from tests.contract.tables import Table, answers, check_places, expected, from_release, registered, source
from tests.trees import RELEASES

TABLE: Table = {
    # only the double-sparsity attention ever read it, and that is gone from 0.5.11
    "triton_attention_reduce_in_fp32_read": {"0.5.9": True, "0.5.11": False},
    "num_continuous_decode_steps_read": {"0.5.9": False},
    "schedule_policy_needs_radix_cache": {"0.5.9": True},
}
CACHE_AWARE = {
    "0.5.9": ("dfs-weight", "lpm"),
    "0.5.20": ("dfs-weight", "hrrn", "lpm"),
    "0.5.21": ("dfs-weight", "hrrn", "lpm", "shortest-prefill-first"),
}


def test_every_probe_has_an_expectation() -> None:
    assert set(TABLE) | {"schedule_policies_cache_aware"} == registered("flag_readers")


@pytest.mark.parametrize("release", RELEASES)
def test_answers(release: str) -> None:
    tree = source(release)
    assert answers(TABLE, tree) == expected(TABLE, release)
    assert tree.list("schedule_policies_cache_aware").values == from_release(CACHE_AWARE, release)
    check_places({probe: tree.ask(probe) for probe in TABLE}, tree)

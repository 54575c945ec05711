"""Public launches that are known to work: SGLang's constructors take them, and the hand-written table agrees with them.

CI builds those on the two commonest machines; `nox -s matrix` all of them, on six releases.
"""

from __future__ import annotations

import pytest

from tests.launches.corpus_cases import GOOD
from tests.trees import tree
from tools.build_corpus import false_error, run

pytestmark = pytest.mark.live

RELEASES = ("0.5.15", "0.5.23")
ALL = ("0.5.13.post1", "0.5.15", "0.5.17", "0.5.19", "0.5.21", "0.5.23")
#: Each kind of machine is an import of SGLang.
MACHINES = ("8xH200", "8xB200")
#: Share of the resolved launches that must be built; the others say why not.
SHARE = 0.85


def _judged(release: str, names: list[str]) -> None:
    tree(release)
    rows = list(run(release, names))
    assert len(rows) == len(names)
    assert not [row for row in rows if false_error(row)]
    assert not {row["name"]: row["disagrees"] for row in rows if row["disagrees"]}
    taken = [row for row in rows if row["status"] != "not taken"]
    left_out = {row["name"]: row["why"] for row in taken if row["status"] != "built"}
    assert all(left_out.values()), left_out
    assert 1 - len(left_out) / len(taken) >= SHARE, left_out
    assert sum(row["compared"] for row in taken) > 2 * len(taken)


def _of(release: str) -> list[str]:
    return [name for name, case in GOOD.items() if release in case["releases"] and case["gpu"] != "unknown"]


@pytest.mark.parametrize("release", RELEASES)
def test_good_launches_on_the_commonest_machines(release: str) -> None:
    names = [n for n in _of(release) if GOOD[n]["gpu"] in MACHINES and not GOOD[n].get("env")]
    assert len(names) > 10
    _judged(release, names)


@pytest.mark.slow
@pytest.mark.parametrize("release", ALL)
def test_every_good_launch(release: str) -> None:
    _judged(release, _of(release))

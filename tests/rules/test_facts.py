"""Every case that is made of facts: the rule fires or is quiet, and its fix silences it."""

from __future__ import annotations

import pytest

from sglang_guards.judge import judge
from sglang_guards.launch.facts import Launch
from sglang_guards.settings import Settings
from tests.rules import snapshots
from tests.rules.cases import CASES, OF_FACTS, RULES, Case, judged

FIRES = [case for case in OF_FACTS if case.fires]
QUIET = [case for case in OF_FACTS if not case.fires]
#: Rules about the built model, held by tests/build.
BUILT = {rule_id for rule_id in RULES if rule_id.startswith("BLD")}


def test_every_rule_is_tried_both_ways() -> None:
    fires = {case.rule for case in CASES if case.fires} | {r for case in CASES for r in case.also_fires}
    quiet = {case.rule for case in CASES if not case.fires} | {r for case in CASES for r in case.also_quiet}
    assert fires >= RULES.keys() - BUILT
    assert quiet >= RULES.keys() - BUILT - {"SGL001"}, (
        "a launch that SGLang takes is what every other case is"
    )


def test_names_are_unique() -> None:
    ids = [case.id for case in CASES]
    assert sorted(set(ids)) == sorted(ids)


@pytest.mark.parametrize("case", FIRES, ids=lambda case: case.id)
def test_it_fires(case: Case) -> None:
    report = judged(case)
    assert not report.notes
    assert not report.skipped
    assert report.findings
    assert {finding.severity.value for finding in report.findings} == {case.severity}
    for finding in report.findings:
        assert all((finding.cause, finding.impact, finding.message))
        assert not finding.cause.endswith(".")
        assert not any(word in finding.cause for word in ("None", "()", "{"))


@pytest.mark.parametrize("case", QUIET, ids=lambda case: case.id)
def test_it_is_quiet(case: Case) -> None:
    report = judged(case)
    assert not report.findings
    assert not report.notes
    assert not report.skipped, "quiet must mean decided"


@pytest.mark.parametrize("case", FIRES, ids=lambda case: case.id)
def test_the_fix_silences_the_rule(case: Case) -> None:
    for finding in judged(case).findings:
        if finding.fix is not None and finding.fix.set:
            assert not judged(case, finding.fix.set).findings, finding.fix


def test_a_missing_fact_skips_and_never_passes() -> None:
    case = next(case for case in FIRES if case.rule == "RUN101")
    known = {name: fact for name, fact in case.launch().facts.items() if name != "model.quant_kind"}
    report = judge(Launch(known, source=case.launch().source), Settings(), [RULES[case.rule]])
    assert [entry.missing for entry in report.skipped] == ["model.quant_kind"]
    assert not report.passed


@pytest.mark.parametrize("rule", sorted({case.rule for case in FIRES}))
def test_the_words_are_those_of_the_snapshot(rule: str, request: pytest.FixtureRequest) -> None:
    """``--renew-snapshots`` writes them anew."""
    mine = [case for case in FIRES if case.rule == rule]
    said = [
        snapshots.block(case.name, case.release, [f.to_dict() for f in judged(case).findings])
        for case in mine
    ]
    if request.config.getoption("--renew-snapshots"):
        snapshots.write(rule, said)
    held = snapshots.held(rule)
    for block in said:
        assert held.get(block.splitlines()[0]) == block


def test_the_fix_of_a_block_size_names_the_smallest_step() -> None:
    by_name = {case.name: case for case in FIRES if case.rule == "QNT101"}
    routed, dense = (judged(by_name[name]).findings[0].fix for name in ("routed", "dense"))
    assert routed is not None
    assert dict(routed.set) == {"ep_size": 2}
    assert dense is not None
    assert dense.set["tp_size"] == 16


def test_what_sglang_sets_by_itself_is_forbidden_rather_than_removed() -> None:
    case = next(case for case in FIRES if case.rule == "ARF102" and not case.given)
    (finding,) = judged(case).findings
    assert finding.fix is not None
    assert finding.fix.set == {"enforce_disable_flashinfer_allreduce_fusion": True}
    assert finding.flags[0].endswith(" (set by SGLang)")

"""The rules of RUN, QNT, SPC, PAR, DET, FLG and ATT on launches built by hand, with the real source trees behind them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from sglang_guards.judge import judge
from sglang_guards.launch.facts import Fact, Launch
from sglang_guards.report.model import Report
from sglang_guards.rules import Rule, all_rules
from sglang_guards.settings import Settings
from tests.contract.tables import source
from tests.unit import hazard_cases
from tests.unit.hazard_cases import BASE, Case, Near
from tests.unit.kind_cases import KIND_DEFAULTS, KINDS

CASES = (*hazard_cases.CASES, *KINDS)
DEFAULTS = {**hazard_cases.DEFAULTS, **KIND_DEFAULTS}
RULES = {
    rule.id: rule for rule in all_rules() if rule.id[:3] in ("RUN", "QNT", "SPC", "PAR", "DET", "FLG", "ATT")
}
IDS = [f"{case.rule}{'-' + case.name if case.name else ''}" for case in CASES]
NEAR = [(case, near) for case in CASES for near in case.near]


def launch_of(case: Case, near: Near | None = None, fix: Mapping[str, Any] | None = None) -> Launch:
    """The case's launch, changed by a near miss or by a finding's fix (None: the flag is removed)."""
    values = {**BASE, **case.facts, **(near.facts if near else {})}
    release = near.release if near and near.release else case.release
    env = near.env if near and near.env is not None else case.env
    given = near.given if near and near.given is not None else case.given
    facts = {
        name: Fact(value, "given" if name.removeprefix("args.") in given else "resolved")
        for name, value in values.items()
    }
    facts |= {name: Fact(fact.value, "assumed") for name, fact in facts.items() if name.startswith("gpu.")}
    for field, value in (fix or {}).items():
        facts[f"args.{field}"] = Fact(DEFAULTS[field], "default") if value is None else Fact(value, "given")
    return Launch(facts, env=env, source=source(release))


def judged(rule: Rule, launch: Launch) -> Report:
    return judge(launch, Settings(), [rule])


def test_every_rule_has_a_case_and_a_near_miss() -> None:
    assert {case.rule for case in CASES} == set(RULES)
    assert all(case.near for case in CASES)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_the_rule_fires(case: Case) -> None:
    report = judged(RULES[case.rule], launch_of(case))
    assert not report.notes
    assert not report.skipped
    assert [f.severity.value for f in report.findings] == [case.severity] * len(report.findings)
    assert report.findings
    for finding in report.findings:
        assert all((finding.cause, finding.impact, finding.message))
        assert not finding.cause.endswith(".")
        assert not any(word in finding.cause for word in ("None", "()", "{"))
        assert finding.fix is None or finding.fix.text


@pytest.mark.parametrize(("case", "near"), NEAR, ids=[f"{c.rule}-{n.what}" for c, n in NEAR])
def test_the_near_miss_is_quiet(case: Case, near: Near) -> None:
    report = judged(RULES[case.rule], launch_of(case, near))
    assert not report.findings
    assert not report.notes
    assert not report.skipped, "quiet must mean decided"


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_the_fix_silences_the_rule(case: Case) -> None:
    for finding in judged(RULES[case.rule], launch_of(case)).findings:
        if finding.fix is None or not finding.fix.set:
            continue
        assert not judged(RULES[case.rule], launch_of(case, fix=finding.fix.set)).findings, finding.fix


def test_a_missing_fact_skips_and_never_passes() -> None:
    case = next(case for case in CASES if case.rule == "RUN101")
    launch = launch_of(case)
    known = {name: fact for name, fact in launch.facts.items() if name != "model.quant_kind"}
    report = judged(RULES["RUN101"], Launch(known, source=launch.source))
    assert [entry.missing for entry in report.skipped] == ["model.quant_kind"]
    assert not report.passed


def test_the_fix_of_a_block_size_names_the_smallest_step() -> None:
    routed = next(case for case in CASES if case.name == "routed")
    dense = next(case for case in CASES if case.name == "dense")
    first = judged(RULES["QNT101"], launch_of(routed)).findings[0].fix
    last = judged(RULES["QNT101"], launch_of(dense)).findings[0].fix
    assert first is not None
    assert dict(first.set) == {"ep_size": 2}
    assert last is not None
    assert last.set["tp_size"] == 16

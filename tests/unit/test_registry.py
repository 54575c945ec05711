"""Invariants over all rules."""

from __future__ import annotations

import re

import pytest

from sglang_guards.rules import FAMILIES, Rule, all_rules

SECTIONS = ("## What it checks", "## Why it matters", "## When it hurts", "## Fix")
RULES = all_rules()


def test_there_are_rules_of_the_fused_sum() -> None:
    ids = {rule.id for rule in RULES}
    assert {"FMS101", "FMS102", "FMS103", "FMS104", "FMS105", "FMS201", "FMS202", "FMS203"} <= ids
    assert {"FMS301", "FMS302", "FMS303"} <= ids


def test_ids_and_names_are_unique() -> None:
    assert len({rule.id for rule in RULES}) == len(RULES)
    assert len({rule.name for rule in RULES}) == len(RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_is_complete(rule: Rule) -> None:
    assert re.fullmatch(r"[A-Z]{3}\d{3}", rule.id)
    assert rule.id[:3] in FAMILIES
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", rule.name)
    for section in SECTIONS:
        assert section in rule.doc, f"{rule.id} lacks {section}"
    assert not rule.summary.endswith(".")
    assert not re.search(r"\b(please|may possibly|simply)\b", rule.doc + rule.summary, re.IGNORECASE)

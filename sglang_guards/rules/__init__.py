"""The rules, one module per kind of fault, and how one is declared.

A rule is a generator that yields violations of one `Launch`. Its docstring is its documentation page (sections «What
it checks», «Why it matters», «When it hurts», «Fix»); reading a fact that is not known skips the rule. See
`registry.rule` for the declaration and CONTRIBUTING.md for the steps.
"""

from sglang_guards.rules.evidence import flashinfer_issue, public_note, read_in, sglang_issue, vllm_issue
from sglang_guards.rules.registry import FAMILIES, Ask, Rule, all_rules, ask, rule
from sglang_guards.rules.violation import Change, Violation, manual, set_to, unset

__all__ = [
    "FAMILIES",
    "Ask",
    "Change",
    "Rule",
    "Violation",
    "all_rules",
    "ask",
    "flashinfer_issue",
    "manual",
    "public_note",
    "read_in",
    "rule",
    "set_to",
    "sglang_issue",
    "unset",
    "vllm_issue",
]

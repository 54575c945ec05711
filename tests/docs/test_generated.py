"""The generated pages say what their sources say."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from sglang_guards.flag_table.table import verdicts
from sglang_guards.rules import all_rules
from tests.docs.site import ROOT
from tests.trees import RELEASES, tree
from tools import evidence, flags_page, truth_table

CLEAR: dict[str, list[Any]] = {
    "a": [False, "sglang/srt/x.py:1"],
    "b": [None, None, "not found"],
    "on": [True, None],
}


def test_every_page_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "tools/docs.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_matrix_names_rules_and_probes_that_exist() -> None:
    rules, probes = {rule.id: rule for rule in all_rules()}, set(truth_table.probe_names())
    for row in truth_table.ROWS:
        assert row.rule in rules, row
        assert {*row.when, *([row.only_if] if row.only_if else [])} <= probes, row
        rule = rules[row.rule]
        asked = {question.probe for case in rule.cases for question, _ in case.answers}
        assert asked & set(row.when), (row.rule, "the rule does not ask what the matrix shows")


def test_the_data_covers_every_release() -> None:
    assert tuple(truth_table.load()["answers"]) == RELEASES


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        (truth_table.Row("X", {"a": False}), "hit"),
        (truth_table.Row("X", {"a": True}), "clear"),
        (truth_table.Row("X", {"b": True}), "unknown"),
        (truth_table.Row("X", {"a": False, "b": True}), "unknown"),
        (truth_table.Row("X", {"a": True, "b": True}), "clear"),
        (truth_table.Row("X", {"a": False}, "on"), "hit"),
        (truth_table.Row("X", {"on": True}, "a"), "none"),
        (truth_table.Row("X", {"on": True}, "b"), "unknown"),
    ],
)
def test_a_cell(row: truth_table.Row, kind: str) -> None:
    assert truth_table.state(row, CLEAR)[0] == kind


def test_spans_join_neighbours() -> None:
    kinds = [("1", "hit"), ("2", "hit"), ("3", "clear"), ("4", "hit")]
    assert list(truth_table.spans(kinds)) == [("1", "2", "hit"), ("3", "3", "clear"), ("4", "4", "hit")]


@pytest.mark.parametrize(
    ("rule", "note", "release", "kind"),
    [
        ("FMS101", "", "0.5.9", "none"),
        ("FMS101", "", "0.5.15", "hit"),
        ("FMS101", "", "0.5.23", "clear"),
        ("FMS103", "", "0.5.10", "clear"),
        ("ARF102", "", "0.5.17", "hit"),
        ("ARF102", "", "0.5.18", "clear"),
        ("SPC101", "", "0.5.19", "clear"),
        ("RUN202", "", "0.5.9", "unknown"),
    ],
)
def test_known_cells(rule: str, note: str, release: str, kind: str) -> None:
    row = next(row for row in truth_table.ROWS if row.rule == rule and row.note == note)
    assert truth_table.state(row, truth_table.load()["answers"][release])[0] == kind


def test_every_outcome_is_explained() -> None:
    text = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "sglang_guards" / "flag_table").glob("*.py")
    )
    assert verdicts.__doc__
    for outcome in flags_page.OUTCOMES:
        assert f'"{outcome}"' in text, outcome


@pytest.mark.live
def test_the_answer_of_the_seed_question_is_what_check_prints() -> None:
    """Counts of rules aside, which change with every new rule: python tools/flags_page.py renews it."""
    tree(flags_page.RELEASE)

    def essence(text: str) -> str:
        return text[text.index("\nwarning[") : text.index("\npassed ")]

    assert essence(flags_page.seed_question()) == essence(flags_page.SEED.read_text(encoding="utf-8"))


def test_evidence_reads_what_the_tests_print() -> None:
    runs = evidence.RUNS
    faults = runs["faults"].read("SGLang 0.5.15: 1234 faults survived\n.\nSGLang 0.5.23: 1,0\n")
    assert faults == [["0.5.15", 1234]]
    fuzz = runs["fuzz"].read("SGLang 0.5.23: {'exit 1': 20, 'exit 2': 30, 'exit 0': 10, 'corrected': 5}\n")
    assert fuzz == [["0.5.23", 60, 10, 20, 30, 5]]
    corpus = runs["corpus"].read(
        "SGLang 0.5.15: 40 working launches judged, 5 not taken by SGLang itself\n"
        "FMS on 0.5.15: 2 of 3 reported launches caught\nFMS on 0.5.23: 1 of 1 reported launches caught\n"
    )
    assert [row[1:3] for row in corpus] == [[40, 0], [4, 3]]
    mutation = runs["mutation"].read("0.5.23: 3 probes, 40 edits, 100 answers: 0 wrong, 7 became unknown\n")
    assert mutation == [["0.5.23", 3, 40, 100, 0, 7]]
    overhead = runs["overhead"].read("0.5.15         {'worker': '3.0 ms', 'launcher': '41.2 ms'}\n")
    assert overhead == [["0.5.15", "41.2 ms", "3.0 ms"]]


def test_the_evidence_page_without_figures_names_the_commands() -> None:
    text = evidence.page({})
    for name in evidence.RUNS:
        assert f"`python tools/evidence.py {name}`" in text

"""Generate the documentation: docs/rules/ from the rules, and the pages made of docs/data/ (releases, flags, evidence).

`--check` fails where a page is out of date.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from sglang_guards.report.model import Severity  # noqa: E402
from sglang_guards.rules import FAMILIES, Rule, all_rules  # noqa: E402
from tools import evidence, flags_page, rule_pages, truth_table  # noqa: E402

DOCS = ROOT / "docs"
RULES = DOCS / "rules"
_KINDS = {"source": "source", "report": "report", "measured": "measured"}


def page(rule: Rule) -> str:
    """One rule as Markdown: its docstring between a head and the evidence."""
    doc = inspect.cleandoc(rule.doc)
    title, _, body = doc.partition("\n")
    lines = [
        f"# {rule.id} · {rule.name}",
        "",
        f"{title.rstrip('.')}. **{rule.severity.value.capitalize()}**: {rule.summary}.",
        "",
        re.sub(r"^## ", "## ", body.strip(), flags=re.MULTILINE),
        "",
    ]
    if example := rule_pages.example(rule.id):
        lines += ["## What check says" if "## Example" in doc else "## Example", "", *example]
    if decided := _decided_by(rule):
        lines += ["## Decided by", "", *decided, ""]
    if found := _releases(rule.id):
        lines += ["## Releases", "", *found, "", "[All rules and releases](../releases.md)", ""]
    if rule.evidence:
        lines += [
            "## Evidence",
            "",
            *(f"- {_KINDS.get(e.kind, e.kind)}: {_link(e.ref)}" for e in rule.evidence),
            "",
        ]
    if not rule.of_refused:
        lines += ["## Suppress", "", f'`SGLANG_GUARDS_IGNORE="{rule.id}=why"`', ""]
    return "\n".join(lines)


def _decided_by(rule: Rule) -> list[str]:
    """What the rule reads, in an operator's words; the answers that the source must give are marked."""
    wanted = {}
    for case in rule.cases:
        for question, answer in case.answers:
            note = f" ({case.note})" if case.note else ""
            words = rule_pages.words(f"source.{question.probe}")
            wanted[words] = f"- {words}: **{'yes' if answer else 'no'}**{note}"
    read = [words for words in rule_pages.decided_by(rule.id) if words not in wanted]
    return [*(f"- {words}" for words in read), *wanted.values()]


def _link(ref: str) -> str:
    if ref.startswith("benchmarks/results"):
        return ref.replace("benchmarks/results", "[benchmarks/results](../results.md)", 1)
    return f"<{ref}>" if ref.startswith("http") else ref


def _releases(rule_id: str) -> list[str]:
    """One line for each row of the matrix about this rule: which releases have it."""
    answers = truth_table.load()["answers"]
    lines = []
    for row in (row for row in truth_table.ROWS if row.rule == rule_id):
        kinds = [(name, truth_table.state(row, cells)[0]) for name, cells in answers.items()]
        spans = [f"{a} – {b}" if a != b else a for a, b, kind in truth_table.spans(kinds) if kind == "hit"]
        note = f"{row.note}: " if row.note else ""
        of = f"of {kinds[0][0]} – {kinds[-1][0]}"
        lines.append(f"- {note}in the source of {', '.join(spans)}" if spans else f"- {note}in none {of}")
    return lines


def index(rules: tuple[Rule, ...]) -> str:
    """All rules by family."""
    lines = ["# Rules", "", "Made from the rules' docstrings by `python tools/docs.py`; do not edit.", ""]
    for prefix, about in FAMILIES.items():
        family = [rule for rule in rules if rule.id.startswith(prefix)]
        if not family:
            continue
        lines += [f"## {prefix} · {about}", "", "| id | severity | fires when |", "|---|---|---|"]
        lines += [f"| [{r.id}]({r.id}.md) | {r.severity.value} | {r.summary} |" for r in family]
        lines.append("")
    counts = ", ".join(f"{sum(r.severity is s for r in rules)} {s.value}" for s in Severity)
    return "\n".join([*lines, f"{len(rules)} rules: {counts}.", ""])


def pages() -> dict[Path, str]:
    """Every generated file and its text."""
    rules = all_rules()
    probes = truth_table.load()
    return {
        RULES / "index.md": index(rules),
        **{RULES / f"{rule.id}.md": page(rule) for rule in rules},
        DOCS / "releases.md": truth_table.page(probes),
        DOCS / "flags.md": flags_page.page(probes),
        DOCS / "evidence.md": evidence.page(evidence.load()),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 when a page is out of date"
    )
    check = parser.parse_args().check
    wanted = pages()
    RULES.mkdir(parents=True, exist_ok=True)
    stale = [p for p, text in wanted.items() if not p.is_file() or p.read_text(encoding="utf-8") != text]
    orphans = [p for p in RULES.glob("*.md") if p not in wanted]
    if check:
        for path in stale + orphans:
            print(f"{path.relative_to(ROOT)} is out of date; run: python tools/docs.py", file=sys.stderr)
        return 1 if stale or orphans else 0
    for path in stale:
        path.write_text(wanted[path], encoding="utf-8")
    for path in orphans:
        path.unlink()
    print(f"{len(wanted)} pages, {len(stale)} written, {len(orphans)} removed")
    return 0


if __name__ == "__main__":
    sys.exit(main())

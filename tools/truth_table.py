"""Which SGLang release has which defect: the probes' answers over all releases, and the page made of them.

    python tools/truth_table.py            asks every unpacked release, writes docs/data/probes.json
    python tools/truth_table.py --check    exit 1 where an unpacked release answers otherwise than the file

`tools/docs.py` makes docs/releases.md from the file alone, so that the page needs no release on the machine.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from sglang_guards.flag_table import source_lines  # noqa: E402
from sglang_guards.flag_table.rows import flag  # noqa: E402
from sglang_guards.preflight import releases  # noqa: E402
from sglang_guards.rules import FAMILIES, all_rules  # noqa: E402
from sglang_guards.source.tree import PROBE_MODULES, PROBES, Answer, Source, find  # noqa: E402

DATA = ROOT / "docs" / "data" / "probes.json"
#: Reads every model file, 10 s a release; tests/contract/test_models_contract.py holds its answers.
SLOW = {"models_full_contract"}
#: One probe's answer in one release: [value, place] and, where the value is None, the reason.
Cell = list[Any]
Data = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """A defect is in a release where every probe of `when` has the named answer.

    `only_if` names the probe that must be true for the question to arise, `note` tells rows of one rule apart.
    """

    rule: str
    when: Mapping[str, bool]
    only_if: str | None = None
    note: str = ""


def rows() -> tuple[Row, ...]:
    """The rows of the page, family by family: what each rule declares, one row for each of its cases.

    Rules that no probe decides (hardware, reports) have none, nor have questions about one launch's model.
    """
    declared = [
        Row(rule.id, {question.probe: wanted for question, wanted in case.answers}, rule.only_if, case.note)
        for rule in all_rules()
        for case in rule.cases
        if not any(question.arguments for question, _ in case.answers)
    ]
    families = list(FAMILIES)
    return tuple(sorted(declared, key=lambda row: (families.index(row.rule[:3]), row.rule)))


ROWS = rows()
#: Sign, class and meaning of a cell.
SIGNS = {
    "hit": ("✗", "it is in the source of this release"),
    "clear": ("✓", "it is not"),
    "none": ("·", "the question does not arise: the flag or the feature is not in this release"),
    "unknown": ("?", "the source could not be understood, or has nothing to ask about"),
}


# -- asking the releases --------------------------------------------------------------------------------------


def probe_names() -> tuple[str, ...]:
    """Every probe but the slow ones and those that ask about one launch, in the order in which they are registered."""
    for module in PROBE_MODULES:
        importlib.import_module(f"sglang_guards.source.{module}")
    return tuple(
        name
        for name, probe in PROBES.items()
        if name not in SLOW and len(inspect.signature(probe.fn).parameters) == 1
    )


def ask(source: Source) -> dict[str, Cell]:
    """Every probe's answer in one release."""
    found: dict[str, Cell] = {}
    for name in probe_names():
        answer = source.ask(name)
        if isinstance(answer, Answer) and answer.detail != f"{name} is a list of names":
            reason = [answer.detail] if answer.value is None and answer.detail else []
            found[name] = [answer.value, answer.where, *reason]
        else:
            items = source.list(name)
            found[name] = [None if items.values is None else sorted(items.values), items.where]
    return found


def lines(source: Source, fields: Sequence[str]) -> dict[str, str]:
    """Where one release decides the topics of the verdict table, and where it declares its flags."""
    found = {}
    for topic, places in source_lines.LINES.items():
        hits = ((rel, source.line(rel, pattern)) for rel, pattern in places if source.text(rel) is not None)
        rel, number = next(((rel, number) for rel, number in hits if number), ("", None))
        found[topic] = f"{rel}:{number}" if number else ""
    fields_files = source.files("sglang/srt/arg_groups/fields", "*.py")
    for field in fields:
        for rel in ("sglang/srt/server_args.py", *fields_files):
            if number := source.line(rel, rf"^    {field}\s*:"):
                found[flag(field)] = f"{rel}:{number}"
                break
    return found


def ask_all(names: Sequence[str]) -> dict[str, Any]:
    """The file's content for the releases that are unpacked here."""
    from tools.flags_page import FIELDS

    answers, places = {}, {}
    for release in names:
        source = find(releases.trees_root() / release)
        if source is None:
            raise SystemExit(f"SGLang {release} is not unpacked; run: python tools/trees.py {release}")
        answers[release] = ask(source)
        places[release] = lines(source, FIELDS)
    return {"answers": answers, "lines": places}


def dump(data: Data) -> str:
    """JSON with one line per answer: a new release is a block of new lines."""
    parts = []
    for part in ("answers", "lines"):
        blocks = []
        for release, cells in data[part].items():
            rows = ",\n".join(
                f"   {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in cells.items()
            )
            blocks.append(f"  {json.dumps(release)}: {{\n{rows}\n  }}")
        parts.append(f" {json.dumps(part)}: {{\n" + ",\n".join(blocks) + "\n }")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def load() -> dict[str, Any]:
    """The committed answers. Ends the program where a probe has none yet."""
    data: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8"))
    held = set.intersection(*(set(cells) for cells in data["answers"].values()))
    if missing := sorted(set(probe_names()) - held):
        raise SystemExit(
            f"{DATA.relative_to(ROOT)} has no answers of {', '.join(missing)}; run: python tools/truth_table.py"
        )
    return data


# -- the page -------------------------------------------------------------------------------------------------


def state(row: Row, answers: Mapping[str, Cell]) -> tuple[str, list[str]]:
    """What a row says of one release, and the places or reasons for it."""
    if row.only_if is not None and answers[row.only_if][0] is not True:
        return ("none" if answers[row.only_if][0] is False else "unknown"), []
    cells = {name: answers[name] for name in row.when}
    differs = [c for name, c in cells.items() if c[0] is not None and c[0] is not row.when[name]]
    if differs:
        return "clear", _told(differs)
    open_ = [c for c in cells.values() if c[0] is None]
    if open_:
        return "unknown", [c[2] for c in open_ if len(c) > 2]
    return "hit", _told(list(cells.values()))


def _told(cells: Sequence[Cell]) -> list[str]:
    return list(dict.fromkeys(c[1].removeprefix("sglang/srt/") for c in cells if c[1]))


def page(data: Data) -> str:
    """docs/releases.md."""
    answers: Mapping[str, Mapping[str, Cell]] = data["answers"]
    names = list(answers)
    out = [
        "# Releases",
        "",
        f"Which SGLang release has which defect or limit, {names[0]} to {names[-1]}. Each cell is the answer of a "
        "source probe, read from the release's own files and never from its version number; point at a cell for the "
        "file and line. "
        "`sglang-guards check --all-releases -- <launch command>` answers it for one launch.",
        "",
        *(f"- {_cell(kind, ())} {meaning}" for kind, (_, meaning) in SIGNS.items()),
        "",
        "A ✗ harms only launches that use the combination: the rule's page says which.",
        "",
        *_matrix(answers),
        "",
        "## Where each row is decided",
        "",
        "The places in the newest release of each span; lines move between the releases of a span.",
        "",
        "| rule | releases | | decided at |",
        "|---|---|---|---|",
        *_spans_table(answers),
        "",
        "## What each release has",
        "",
        "Every other answer of the probes: ● yes, ○ no, ? not known.",
        "",
        *_facts(answers),
        "",
        "## Architectures that SGLang fuses by itself",
        "",
        "SGLang's own list for FlashInfer all-reduce fusion. An architecture is shown from the release on that lists "
        "it.",
        "",
        *_architectures(answers),
        "",
        "Made by `python tools/docs.py` from `docs/data/probes.json`, which `python tools/truth_table.py` writes from "
        "the unpacked releases; a test holds that they agree.",
        "",
    ]
    return "\n".join(out)


def _cell(kind: str, told: Sequence[str]) -> str:
    title = f' title="{escape("; ".join(told))}"' if told else ""
    return f'<span class="tt tt-{kind}"{title}>{SIGNS[kind][0]}</span>'


def _head(first: str, names: Sequence[str]) -> list[str]:
    heads = " | ".join(f'<span class="tt-v">{name}</span>' for name in names)
    return [f"| {first} | {heads} |", "|---|" + ":-:|" * len(names)]


def _matrix(answers: Mapping[str, Mapping[str, Cell]]) -> Iterator[str]:
    rules = {rule.id: rule for rule in all_rules()}
    yield from _head("rule", list(answers))
    for row in ROWS:
        rule = rules[row.rule]
        text = f"[{row.rule}](rules/{row.rule}.md) {rule.severity.value}: {rule.summary}"
        text += f" ({row.note})" if row.note else ""
        yield f"| {text} | " + " | ".join(_cell(*state(row, a)) for a in answers.values()) + " |"


def spans(kinds: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str, str]]:
    """Neighbouring releases with the same state: first, last, state."""
    first = 0
    for at in range(1, len(kinds) + 1):
        if at == len(kinds) or kinds[at][1] != kinds[first][1]:
            yield kinds[first][0], kinds[at - 1][0], kinds[first][1]
            first = at


def _spans_table(answers: Mapping[str, Mapping[str, Cell]]) -> Iterator[str]:
    for row in ROWS:
        kinds = [(name, state(row, cells)[0]) for name, cells in answers.items()]
        for first, last, kind in spans(kinds):
            if kind == "none":
                continue
            told = state(row, answers[last])[1]
            places = ", ".join(f"`{t}`" if ":" in t and " " not in t else t for t in told) or "–"
            span = first if first == last else f"{first} – {last}"
            label = f"[{row.rule}](rules/{row.rule}.md)" + (f" {row.note}" if row.note else "")
            yield f"| {label} | {span} | {SIGNS[kind][0]} | {places} |"


def _facts(answers: Mapping[str, Mapping[str, Cell]]) -> Iterator[str]:
    used = {name for row in ROWS for name in row.when}
    yield from _head("fact", list(answers))
    for name in probe_names():
        cells = [answers[release][name] for release in answers]
        if name in used or any(isinstance(cell[0], list) for cell in cells):
            continue
        signs = []
        for cell in cells:
            sign = {True: "●", False: "○", None: "?"}[cell[0]]
            told = (cell[1] or (cell[2] if len(cell) > 2 else "")).removeprefix("sglang/srt/")
            signs.append(f'<span title="{escape(told)}">{sign}</span>' if told else sign)
        yield f"| {PROBES[name].doc.rstrip('.')} | " + " | ".join(signs) + " |"


def _architectures(answers: Mapping[str, Mapping[str, Cell]]) -> Iterator[str]:
    first: dict[str, str] = {}
    lists = {release: cells["fusion_auto_architectures"][0] or [] for release, cells in answers.items()}
    for release, found in lists.items():
        for name in found:
            first.setdefault(name, release)
    last = list(lists.values())[-1]
    oldest = next(iter(lists))
    for release in lists:
        new = sorted(name for name, since in first.items() if since == release)
        if new:
            gone = [name for name in new if name not in last]
            note = f" (gone from the newest release: {', '.join(f'`{g}`' for g in gone)})" if gone else ""
            yield (
                f"- {release}{' and before' if release == oldest else ''}: "
                + ", ".join(f"`{name}`" for name in new)
                + note
            )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a release differs")
    check = parser.parse_args().check
    names = list(releases.unpacked())
    if not names:
        print(
            f"no release is unpacked in {releases.trees_root()}; run: python tools/trees.py --all",
            file=sys.stderr,
        )
        return 2
    now = ask_all(names)
    if check:
        held = load()
        wrong = [
            f"{part} {release} {key}: {held[part].get(release, {}).get(key)} in the file, {value} in the source"
            for part in now
            for release, cells in now[part].items()
            for key, value in cells.items()
            if held[part].get(release, {}).get(key) != value
        ]
        print(*wrong, sep="\n", file=sys.stderr)
        return 1 if wrong else 0
    DATA.parent.mkdir(parents=True, exist_ok=True)
    DATA.write_text(dump(now), encoding="utf-8")
    print(f"{DATA.relative_to(ROOT)}: {len(names)} releases, {len(probe_names())} probes")
    return 0


if __name__ == "__main__":
    sys.exit(main())

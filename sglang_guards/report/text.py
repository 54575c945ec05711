"""A report as text: for people (`text`), as one JSON object (`to_json`), and as lines of a server's log.

Other formats are files of their own: `report/<format>.py` with ``render(report, at) -> str`` and ``failure``.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from typing import IO, TYPE_CHECKING, Any

from sglang_guards.report import unknown
from sglang_guards.report.model import SCHEMA_VERSION, Finding, FlagVerdict, Report, Severity
from sglang_guards.report.summary import summary_rows

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

#: Formats of `check`.
FORMATS = ("text", "json", "github", "sarif")
_STYLE = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.INFO: "bold cyan"}
_LABELS = ("cause", "impact", "fix", "see")
#: Used when the output is no terminal, so that files and logs look alike everywhere.
_WIDTH = 110
_NARROWEST, _WIDEST = 40, 140


def other(name: str, report: Report, at: str = "") -> str:
    """The report in a format that has a file of its own; `at` is where the launch is written, ``FILE[:LINE]``."""
    return str(importlib.import_module(f"sglang_guards.report.{name}").render(report, at))


def failure(name: str, message: str, hint: str) -> str:
    """What a format other than text prints on stdout at exit code 2."""
    if name == "json":
        return error_json(message, hint)
    return str(importlib.import_module(f"sglang_guards.report.{name}").failure(message, hint))


def to_json(report: Report) -> str:
    """One JSON object, as `schemas/report.json` describes it."""
    return json_text(report.to_dict())


def error_json(message: str, hint: str) -> str:
    """The JSON object of exit code 2."""
    from sglang_guards import __version__

    body = {
        "schema_version": SCHEMA_VERSION,
        "tool": {"name": "sglang-guards", "version": __version__},
        "error": {"message": message, "hint": hint},
    }
    return json_text(body)


#: What a terminal would act on although JSON lets it stand.
_RAW = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def json_text(body: Any) -> str:
    """JSON that every reader takes: no NaN, and nothing in it that would steer a terminal."""
    made = json.dumps(body, indent=2, ensure_ascii=False, default=str)
    return _RAW.sub(lambda found: f"\\u{ord(found[0]):04x}", made)


def console(file: IO[str] | None = None) -> Console:
    """Where text goes: colours as NO_COLOR, FORCE_COLOR and the terminal say."""
    from rich.console import Console

    out = file or sys.stdout
    columns = os.environ.get("COLUMNS", "")
    said = int(columns) if columns.isascii() and columns.isdigit() else 0
    width = max(said, _NARROWEST) if said else _WIDTH if columns or not out.isatty() else None
    return Console(file=out, width=width, highlight=False, markup=False, emoji=False)


def text(report: Report, to: Console, *, verbose: bool = False) -> None:
    """The report for people; the last lines are the verdict and the corrected command."""
    from rich.text import Text

    width = max(_NARROWEST, min(to.width, _WIDEST))
    to.print(Text(_title(report), style="bold"), soft_wrap=True)
    _summary(report, to, width)
    to.print()
    for finding in report.findings:
        for line in _finding(finding, width):
            to.print(line, soft_wrap=True)
        to.print()
    shown = report.flags if verbose else tuple(row for row in report.flags if _asked(row))
    if shown:
        _flags(shown, to, width)
        to.print()
    _notes(report, to, width, verbose)
    verdict = Text(verdict_line(report), style="bold red" if report.errors else "bold green")
    to.print(verdict, soft_wrap=True)
    if report.corrected is not None:
        from sglang_guards import shell  # at start-up there is no command to correct, and a server waits

        to.print("corrected command:", soft_wrap=True)
        to.print("  " + shell.shown(report.corrected), soft_wrap=True)


def _title(report: Report) -> str:
    from sglang_guards import __version__

    build = " (development build)" if report.target.get("dev_build") else " (installed)"
    release = f"SGLang {report.target.get('sglang', 'unknown')}{build}"
    owner = str(report.target.get("distribution") or "")
    if owner and not owner.lower().startswith("sglang "):
        release = f"{owner} · {release}"
    return f"sglang-guards {__version__} · {release} · {report.applied} of {report.known} rules apply"


def _summary(report: Report, to: Console, width: int) -> None:
    from rich.text import Text

    rows = summary_rows(report)
    room = max((len(origin) for _, _, origin in rows), default=0)
    for label, value, origin in rows:
        space = width - 12 - room - 2
        head, *more = _wrapped(value, max(space, 20)) or [""]
        line = Text(f"  {label:<10}{head}")
        if space >= 20:
            line.append(" " * max(1, width - room - line.cell_len) + origin, style="dim")
        to.print(line, soft_wrap=True)
        for part in more:
            to.print(" " * 12 + part, soft_wrap=True)


def _finding(finding: Finding, width: int) -> Iterator[Text]:
    from rich.text import Text

    head = Text(f"{finding.severity.value}[{finding.id}]", style=_STYLE[finding.severity])
    first, *more = _wrapped(finding.message, width - head.cell_len - 1) or [""]
    yield head.append(f" {first}", style="bold")
    for part in more:
        yield Text("  " + part, style="bold")
    for line in finding_body(finding, width):
        yield Text(line)


def finding_body(finding: Finding, width: int) -> Iterator[str]:
    """The lines under a finding's head: the flags as typed, the cause, the impact, the fix, where to read on."""
    if finding.flags:
        yield from _labelled("  | ", " ".join(finding.flags), width)
    parts = {
        "cause": finding.cause,
        "impact": finding.impact,
        "fix": finding.fix.text if finding.fix else "",
        "see": f"sglang-guards explain {finding.id}",
    }
    for label in _LABELS:
        if parts[label]:
            yield from _labelled(f"  = {label:<6} ", parts[label], width)


def _labelled(label: str, value: str, width: int) -> Iterator[str]:
    for number, part in enumerate(_wrapped(value, width - len(label))):
        yield (label if number == 0 else " " * len(label)) + part


def _wrapped(value: str, width: int) -> list[str]:
    return textwrap.wrap(value, max(width, 20), break_long_words=False, break_on_hyphens=False)


def _asked(row: FlagVerdict) -> bool:
    return row.requested not in ("", "-", "–", "not set", "default")


def _flags(rows: Iterable[FlagVerdict], to: Console, width: int) -> None:
    from rich.table import Table

    roomy = width >= 100
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False, width=width)
    table.add_column("flag", no_wrap=roomy, overflow="fold")
    table.add_column("requested", overflow="fold", max_width=14)
    table.add_column("effect", no_wrap=True)
    table.add_column("why", overflow="fold", ratio=1)
    for row in rows:
        why = f"{row.why}\n({row.source})" if row.source else row.why
        table.add_row(row.flag, row.requested, row.effect, why)
    _unpadded(table, to)


def _notes(report: Report, to: Console, width: int, verbose: bool) -> None:
    lines: list[tuple[str, str]] = [
        ("ignored", f"{i.id} ({i.severity.value}): {i.reason}") for i in report.ignored
    ]
    lines += [("unknown", line) for line in unknown.lines(report, all_reasons=verbose)]
    lines += [("note", line) for line in report.notes]
    if verbose and report.passed:
        lines.append(("passed", ", ".join(report.passed)))
    if verbose:
        lines += [("carries", f"patch: {patch}") for patch in report.target.get("patches", ())]
    for label, value in lines:
        for line in _labelled(f"{label:<8} ", value, width):
            to.print(line, soft_wrap=True)
    if lines:
        to.print()


def counts(report: Report) -> str:
    """``1 error, 2 warnings``; empty when there is nothing to count (infos count only alone)."""
    names = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "info"}
    parts = [(report.count(severity), name) for severity, name in names.items()]
    return ", ".join(f"{n} {name}{'s' if n != 1 and name != 'info' else ''}" for n, name in parts if n)


def verdict_line(report: Report) -> str:
    """``FAIL  1 error, 1 warning · 21 passed, 1 skipped · 0.3 s``."""
    verdict = report.verdict.upper()
    head = f"{verdict}, {counts(report)}" if verdict == "PASS" and counts(report) else verdict
    if verdict != "PASS" and counts(report):
        head = f"{verdict}  {counts(report)}"
    rules = f"{len(report.passed)} passed"
    if report.skipped:
        rules += f", {len(report.skipped)} skipped"
    if report.ignored:
        rules += f", {len(report.ignored)} ignored"
    return f"{head} · {rules} · {report.seconds:.1f} s" if report.seconds else f"{head} · {rules}"


def log_lines(report: Report) -> list[str]:
    """The findings as lines of a server's log, one each, worst first; then what was suppressed and what failed."""
    lines = [_log_line(finding) for finding in report.findings]
    lines += [f"sglang-guards: {i.id} ({i.severity.value}) ignored: {i.reason}" for i in report.ignored]
    lines += [f"sglang-guards: {line}" for line in unknown.lines(unknown.without_build(report))]
    lines += [f"sglang-guards: {note}" for note in report.notes]
    return lines


def _log_line(finding: Finding) -> str:
    fix = f"; fix: {finding.fix.text}" if finding.fix else ""
    fact = f": {finding.cause}" if finding.cause else ""
    return f"sglang-guards {finding.severity.value}[{finding.id}] {finding.message}{fact}{fix}"


def refusal(report: Report) -> str:
    """The text of a refused launch: every error in full, the verdict last (launchers print the end last)."""
    lines = ["sglang-guards refuses this launch", ""]
    for finding in report.errors:
        lines.append(f"{finding.severity.value}[{finding.id}] {finding.message}")
        lines += finding_body(finding, _WIDTH)
        lines.append("")
    refused = dict.fromkeys(finding.id for finding in report.errors if not finding.id.startswith("SGL"))
    ids = "; ".join(f"{rule_id}=why" for rule_id in refused)
    lines.append("To start it repaired where that is possible: SGLANG_GUARDS=fix")
    lines.append(f'To start it all the same: SGLANG_GUARDS=warn, or SGLANG_GUARDS_IGNORE="{ids}"')
    lines.append(verdict_line(report))
    return "\n".join(lines)


def page(doc: str, width: int) -> str:
    """A rule's docstring for the terminal: paragraphs filled, headings and lists kept."""
    blocks = textwrap.dedent(_first_line_dedented(doc)).strip().split("\n\n")
    return "\n\n".join(_block(block, width) for block in blocks)


def _first_line_dedented(doc: str) -> str:
    head, _, rest = doc.partition("\n")
    return f"{head.strip()}\n{textwrap.dedent(rest)}"


def _block(block: str, width: int) -> str:
    out: list[str] = []
    for line in block.splitlines():
        starts = line.startswith(("#", "-", "*", "|", " ", "```"))
        if starts or not out or out[-1].startswith(("#", "|", "```")):
            out.append(line)
        else:
            out[-1] = f"{out[-1]} {line.strip()}"
    return "\n".join(line if line.startswith(("|", " ", "```")) else _fill(line, width) for line in out)


def _fill(line: str, width: int) -> str:
    indent = "  " if line.startswith(("- ", "* ")) else ""
    return textwrap.fill(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def table_of(rows: Iterable[tuple[Any, ...]], heads: tuple[str, ...], to: Console) -> None:
    """A plain table; the last column takes what is left of the width."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for head in heads[:-1]:
        table.add_column(head, no_wrap=True)
    table.add_column(heads[-1], overflow="fold")
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    _unpadded(table, to)


def _unpadded(table: Table, to: Console) -> None:
    """The table without the spaces that fill its last column: people copy lines, and files keep them."""
    with to.capture() as shown:
        to.print(table)
    to.file.write("".join(line.rstrip(" ") + "\n" for line in shown.get().splitlines()))

"""What a check could not judge, in words: silence must mean that something was looked at."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from sglang_guards import flags
from sglang_guards.report.model import Report

#: A missing fact -> what is not known. Others are named as they are.
_WORDS = {
    "target.runner": "which runner the MoE layers get is not known",
    "draft.runner": "which runner the draft's MoE layers get is not known",
    "resolved server args": "SGLang refuses the launch before it has resolved it",
    "time": "the rules were stopped",
}
#: More reasons than this are one line without them.
_MOST_REASONS = 3
_MOST_IDS = 12


def lines(report: Report, *, all_reasons: bool = False) -> list[str]:
    """«could not judge FMS104: …», one for each reason; one for all where there are many reasons."""
    by_reason: dict[str, list[str]] = {}
    for skipped in report.skipped:
        by_reason.setdefault(skipped.missing, []).append(skipped.id)
    made = [f"could not judge {line}" for line in report.unknown]
    if len(by_reason) > _MOST_REASONS and not all_reasons:
        ids = [rule_id for some in by_reason.values() for rule_id in some]
        return [*made, f"could not judge {_ids(ids)}: {len(by_reason)} facts are not known (-v names them)"]
    return [*made, *(f"could not judge {_ids(ids)}: {_words(fact)}" for fact, ids in by_reason.items())]


def without_build(report: Report) -> Report:
    """The report without the rules that only a build could judge: at start-up nobody asked for one."""
    kept = tuple(skipped for skipped in report.skipped if not skipped.missing.startswith("build."))
    return dataclasses.replace(report, skipped=kept)


def anything(report: Report) -> bool:
    """Whether a rule, the runner, or a flag that was typed could not be judged."""
    typed = {flag.name for flag in flags.typed(report.argv)}
    rows = any(row.effect == "unknown" and row.flag in typed for row in report.flags)
    return bool(report.skipped or report.unknown or rows)


def _words(fact: str) -> str:
    if fact in _WORDS:
        return _WORDS[fact]
    prefix, _, name = fact.partition(".")
    if prefix == "build":
        return f"{fact} needs the model to be built"
    if prefix == "source":
        return f"the installed SGLang's source does not answer {name}"
    return f"{fact} not known"


def _ids(ids: Sequence[str]) -> str:
    return ", ".join(ids) if len(ids) <= _MOST_IDS else f"{len(ids)} rules"

"""SGL: what SGLang itself refuses in resolution."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_guards.launch.facts import Launch
from sglang_guards.report.model import Evidence, Severity
from sglang_guards.rules import Violation, rule


@rule(
    "SGL001",
    "sglang-refuses",
    Severity.ERROR,
    summary="SGLang refuses this launch in resolution",
    applies=lambda launch: "refusal.message" in launch.facts,
    of_refused=True,
)
def refused(launch: Launch) -> Iterator[Violation]:
    """SGLang refuses the launch itself.

    ## What it checks
    SGLang's own resolution of the server args raised an error for this launch, on the GPUs that were named.

    ## Why it matters
    The server does not start, so this finding cannot be ignored. Rules that need resolved values are skipped.

    ## When it hurts
    At start-up, before the weights are loaded.

    ## Fix
    Do what SGLang's reason says; the cause names the line that raised it.
    """
    where = launch["refusal.where"]
    short = where.removeprefix("sglang/srt/")
    yield Violation(
        message=f"SGLang refuses this launch: {launch['refusal.message']}",
        cause=f"raised in resolution at {short}" if where else "raised in resolution",
        impact="at start-up, before the weights are loaded",
        evidence=(Evidence("source", where),) if where else (),
    )

"""What every rule found and read, for some launches on the SGLang of this process.

Reads the launches as `checks.check_all` sends them; prints for each launch
{rule id: {"fires": bool, "read": {fact: value}}}.
"""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any

from sglang_guards.errors import CouldNotCheck
from sglang_guards.judge import judge as real_judge
from sglang_guards.launch.facts import Fact, Launch, MissingFact, question
from sglang_guards.launch.recording import RecordingLaunch
from sglang_guards.preflight import judging, launch_check
from sglang_guards.rules import Rule, all_rules


class _Valued(RecordingLaunch):
    """Keeps the answers to questions with arguments too: a launch has no name for them."""

    asked: dict[str, str]

    def __init__(self, of: Launch) -> None:
        object.__setattr__(self, "asked", {})
        super().__init__(of)

    def answer(self, probe: str, **arguments: str) -> Fact:
        name = f"source.{question(probe, arguments)}"
        self.asked[name] = "not known"
        found = super().answer(probe, **arguments)
        self.asked[name] = repr(found.value)
        return found


def read_by(rule: Rule, launch: Launch) -> dict[str, str]:
    """The facts that the rule reads on this launch, in order, with their values."""
    recording = _Valued(launch)
    with contextlib.suppress(MissingFact):
        rule.findings(recording)
    return {
        name: repr(launch.env.get(name[4:]) if name.startswith("env.") else launch.get(name, "not known"))
        for name in recording.read
        if name not in recording.asked
    } | recording.asked


def main() -> None:
    seen: list[Launch] = []

    def remember(launch: Launch, *args: Any, **kwargs: Any) -> Any:
        seen.append(launch)
        return real_judge(launch, *args, **kwargs)

    judging.judge = remember  # type: ignore[attr-defined]
    answers: list[dict[str, Any]] = []
    for asked in json.load(sys.stdin):
        seen.clear()
        try:
            report = launch_check.check(asked.pop("argv"), **({"build": False} | asked))
        except CouldNotCheck as error:
            answers.append({"error": str(error)})
            continue
        fired = {finding.id for finding in report.findings}
        launch = seen[0]
        answers.append(
            {"refused": "SGL001" in fired}
            | {
                rule.id: {
                    "fires": rule.id in fired,
                    "read": read_by(rule, launch),
                }
                for rule in all_rules()
            }
        )
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()

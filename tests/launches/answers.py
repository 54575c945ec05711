"""What every rule found and read, for some launches on the SGLang of this process.

Reads the launches as `checks.check_all` sends them; prints for each launch
{rule id: {"fires": bool, "read": {fact: value}}}.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from sglang_guards.errors import CouldNotCheck
from sglang_guards.judge import judge as real_judge
from sglang_guards.launch.facts import Launch
from sglang_guards.preflight import launch_check
from sglang_guards.rules import all_rules


def main() -> None:
    seen: list[Launch] = []

    def remember(launch: Launch, *args: Any, **kwargs: Any) -> Any:
        seen.append(launch)
        return real_judge(launch, *args, **kwargs)

    launch_check.judge = remember  # type: ignore[attr-defined]
    answers: list[dict[str, Any]] = []
    for asked in json.load(sys.stdin):
        seen.clear()
        try:
            report = launch_check.check(asked.pop("argv"), **asked)
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
                    "read": {need: repr(launch.get(need, "not known")) for need in rule.needs},
                }
                for rule in all_rules()
            }
        )
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()

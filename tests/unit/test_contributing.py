"""The worked example of CONTRIBUTING.md is what the files say."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_the_quoted_lines_are_in_the_files() -> None:
    section = TEXT.partition("## Add a rule in five steps")[2].partition("\n## ")[0]
    path, quoted = "", 0
    for part in re.finditer(r"^ +`([\w/.]+)`:$|^ +```\w+\n(.*?)^ +```$", section, re.MULTILINE | re.DOTALL):
        if part[1]:
            path = part[1]
            continue
        lines = textwrap.dedent(part[2])
        held = (ROOT / path).read_text(encoding="utf-8")
        assert lines in held or textwrap.indent(lines, "    ") in held, f"{path}:\n{lines}"
        quoted += 1
    assert quoted == 4

"""--format github: read back as the runner reads it, so that no text of a launch can become a command."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from sglang_guards.report.github import annotation, failure, place, render
from tests.unit.reports import ERROR, INFO, WARNING, report


def runner_reads(line: str) -> tuple[str, dict[str, str], str]:
    """Command, properties and data, as the actions runner takes a line apart."""
    match = re.fullmatch(r"::([a-z-]+)(?: (.*?))?::(.*)", line)
    assert match, line
    properties = dict(part.split("=", 1) for part in (match[2] or "").split(",") if part)
    return (
        match[1],
        {k: plain(plain(v, "%3A", ":"), "%2C", ",") for k, v in properties.items()},
        plain(match[3]),
    )


def plain(text: str, code: str = "", char: str = "") -> str:
    if code:
        return text.replace(code, char)
    return text.replace("%0D", "\r").replace("%0A", "\n").replace("%25", "%")


def test_one_annotation_for_each_finding_and_the_verdict_last() -> None:
    lines = render(report(ERROR, WARNING, INFO), "deploy/launch.sh:7").splitlines()
    read = [runner_reads(line) for line in lines[:-1]]
    assert [level for level, _, _ in read] == ["error", "warning", "notice", "notice"]
    assert read[0][1] == {"file": "deploy/launch.sh", "line": "7", "title": "FMS101 fused-sum-out-of-bounds"}
    assert read[0][2].splitlines() == [
        ERROR.message,
        "--enable-fused-moe-sum-all-reduce --ep-size 4",
        ERROR.cause,
        ERROR.impact,
        "fix: remove --enable-fused-moe-sum-all-reduce",
        f"see: {ERROR.url}",
    ]
    assert lines[-1] == "FAIL  1 error, 1 warning, 1 info · 1 passed, 1 skipped, 1 ignored"


def test_without_a_file_there_is_no_place() -> None:
    assert "file" not in runner_reads(render(report(ERROR)).splitlines()[0])[1]
    assert place("a:b") == ("a:b", None)
    assert place("launch.sh:0") == ("launch.sh:0", None)


def test_the_corrected_command_is_a_notice() -> None:
    made = report(corrected=("python", "-m", "sglang.launch_server", "--served-model-name", "x\n::error::y"))
    notices = [runner_reads(line) for line in render(made).splitlines()[:-1]]
    assert notices[-1][0] == "notice"
    assert notices[-1][2] == "python -m sglang.launch_server --served-model-name 'x\n::error::y'"


def test_trouble_is_an_error() -> None:
    level, properties, data = runner_reads(failure("no GPU is visible", "name it with --gpu"))
    assert (level, properties["title"]) == ("error", "sglang-guards could not check")
    assert data == "no GPU is visible\nhint: name it with --gpu"


TEXTS = st.lists(st.sampled_from([*"ab %\r\n:,=;#[]", "::", "%0A", "##[error]"]), max_size=30).map("".join)


@given(TEXTS, TEXTS.filter(bool))
def test_every_text_stays_one_line_and_comes_back(message: str, title: str) -> None:
    line = annotation("error", message, title)
    assert "\n" not in line
    assert "\r" not in line
    level, properties, data = runner_reads(line)
    assert (level, plain(properties["title"]), data) == ("error", title, message)


def test_without_a_line_the_annotation_stands_where_sglang_is_started(tmp_path: Path) -> None:
    file = tmp_path / "launch.sh"
    file.write_text(
        "#!/bin/sh\n# python -m sglang.launch_server, see the wiki\nset -e\nexec sglang serve --tp 4\n"
    )
    assert place(str(file)) == (str(file), 4)
    file.write_text("echo starting sglang serve\npip install sglang serve\n")
    assert place(str(file)) == (str(file), None)
    assert place("/dev/zero") == ("/dev/zero", None)
    assert place("launch.sh:" + "9" * 5000)[1] is None

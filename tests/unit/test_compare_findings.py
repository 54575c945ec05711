"""The comparison of two versions' findings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.compare_findings import main


@pytest.mark.parametrize(
    ("after", "code", "line"),
    [
        ([["RUN109", "warning"]], 0, "1 launches compared; 0 findings gone or changed, 0 new"),
        ([["RUN109", "error"]], 1, "a: RUN109 warning"),
        ([], 1, "a: RUN109 warning"),
        ([["FMS101", "error"], ["RUN109", "warning"]], 0, "a: FMS101 error"),
        ("cannot be read", 1, "a: no longer judged: cannot be read"),
    ],
)
def test_what_is_gone_fails_and_what_is_new_is_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], after: object, code: int, line: str
) -> None:
    files = [tmp_path / "before.json", tmp_path / "after.json"]
    for path, findings in zip(files, ([["LNC106", "warning"]], after), strict=True):
        path.write_text(json.dumps({"a": findings}), encoding="utf-8")
    assert main([*map(str, files), "--ids", "LNC106=RUN109"]) == code
    assert line in capsys.readouterr().out

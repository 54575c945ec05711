"""check --all-releases on real releases: one process each, so the answers may differ."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.launches.checks import MODELS, ROOT
from tests.live.runs import FLAG
from tests.trees import tree

SCHEMA = json.loads(
    (resources.files("sglang_guards") / "schemas" / "releases.json").read_text(encoding="utf-8")
)
SECRET = "sk-hidden-everywhere"
ARGS = ["--model-path", "example/qwen3", "--tp", "4", "--ep-size", "4", FLAG, "--api-key", SECRET]


@pytest.mark.live
@pytest.mark.slow
def test_the_releases_differ(tmp_path: Path) -> None:
    for release in ("0.5.9", "0.5.15", "0.5.23"):
        (tmp_path / release).symlink_to(tree(release))
    (tmp_path / "0.5.99" / "sglang" / "srt").mkdir(parents=True)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SGLANG_", "PIP_"))}
    env |= {"PYTHONPATH": str(ROOT), "SGLANG_GUARDS_TREES": str(tmp_path), "PIP_NO_INDEX": "1"}
    options = ["--all-releases", "--gpu", "4xRTX-PRO-6000", "--format", "json"]
    model = ["--model-config", str(MODELS / "qwen3-30b-a3b-bf16")]
    launch = ["--", "python", "-m", "sglang.launch_server", *ARGS]
    done = subprocess.run(
        [sys.executable, "-m", "sglang_guards", "check", *options, *model, *launch],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert SECRET not in done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    jsonschema.Draft202012Validator(SCHEMA).validate(found)
    rows = {row["release"]: row for row in found["releases"]}
    assert {name: row["safe"] for name, row in rows.items()} == {
        "0.5.9": False,
        "0.5.15": False,
        "0.5.23": True,
        "0.5.99": None,
    }
    assert rows["0.5.9"]["why"] == f"SGLang 0.5.9 does not know {FLAG}"
    assert "FMS101" in [finding["id"] for finding in rows["0.5.15"]["findings"]]
    assert "cannot be imported here" in rows["0.5.99"]["why"]
    assert found["safe"] == ["0.5.23"]
    assert "pip reaches no package index" in found["notes"][0]

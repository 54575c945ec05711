"""The GitHub workflows: what they run exists, nothing unpinned runs, and no job may do more than it says."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
# The sdist has no .github; there is nothing to test there.
pytestmark = pytest.mark.skipif(not WORKFLOWS, reason="no .github in this copy")


def loaded(path: Path) -> Mapping[Any, Any]:
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(data, dict)
    return data


def steps() -> Iterator[tuple[Path, Mapping[str, Any]]]:
    for path in WORKFLOWS:
        for job in loaded(path)["jobs"].values():
            for step in job.get("steps", ()):
                yield path, step


def test_every_action_is_pinned_to_a_commit_with_its_version_beside_it() -> None:
    files = [*WORKFLOWS, *(ROOT / ".github" / "actions").glob("*/action.yml")]
    used = [line.strip() for path in files for line in path.read_text().splitlines() if "uses: " in line]
    assert len(used) > 10
    for line in used:
        if "uses: ./" not in line:
            assert re.search(r"uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line), line


def test_what_a_step_runs_is_there_and_may_be_run() -> None:
    scripts = {
        word
        for _, step in steps()
        for word in re.findall(r"(?<![\w/.])(?:tools/|\.ci/)[\w./-]+", step.get("run", ""))
    }
    assert {"tools/test.sh", "tools/dist.sh", ".ci/run", "tools/patches.py", "tools/docs.py"} <= scripts
    for script in scripts:
        assert (ROOT / script).is_file(), script
        assert script.endswith(".py") or os.access(ROOT / script, os.X_OK), script


def test_a_job_gets_the_rights_it_names_and_no_others() -> None:
    wide = {}
    for path in WORKFLOWS:
        data = loaded(path)
        assert data["permissions"] == {"contents": "read"}, path.name
        for name, job in data["jobs"].items():
            assert "timeout-minutes" in job or "uses" in job, (path.name, name)
            if rights := job.get("permissions"):
                wide[path.name, name] = rights
    assert wide == {
        ("docs.yml", "publish"): {"pages": "write", "id-token": "write"},
        ("release.yml", "attest"): {"id-token": "write", "attestations": "write"},
        ("release.yml", "publish"): {"id-token": "write"},
        ("release.yml", "announce"): {"contents": "write"},
    }


def test_no_text_of_an_event_gets_into_a_script() -> None:
    """`${{ … }}` inside `run` is how a title of a pull request becomes a command."""
    for path, step in steps():
        assert "${{" not in step.get("run", ""), (path.name, step)


def test_a_release_is_published_after_everything_else_passed() -> None:
    jobs = loaded(ROOT / ".github" / "workflows" / "release.yml")["jobs"]
    assert jobs["attest"]["needs"] == ["build", "test"]
    assert jobs["publish"]["needs"] == "attest"
    assert jobs["publish"]["environment"]["name"] == "pypi"
    assert not any("password" in step.get("with", {}) for step in jobs["publish"]["steps"])

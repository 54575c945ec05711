"""Launchers that pass by what is wrapped: doctor says NOT ACTIVE, and a real launch has a WARNING.

Each tree is the release with a file of its own, everything else linked.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.launches.checks import ROOT
from tests.live.runs import QWEN3, live_environment
from tests.trees import tree

pytestmark = pytest.mark.live

RELEASE = "0.5.23"
ENGINE = "srt/entrypoints/engine.py"
ARGS = "srt/server_args.py"
CALL = "        server_args.check_server_args()\n"
FREE = (
    "        from sglang.srt.arg_groups.validation_hook import check_server_args as validated\n\n"
    "        validated(server_args)\n"
)
METHOD = "    def check_server_args(self):\n"
RENAMED = (
    "    def validate(self):\n"
    "        from sglang.srt.arg_groups.validation_hook import check_server_args\n\n"
    "        check_server_args(self)\n\n"
)
LATE = Path(__file__).parent / "late"
#: How a launcher comes to pass the hook by: edits of the tree, and whether the plugin of tests/live/late is beside.
WAYS: dict[str, tuple[dict[str, tuple[str, str]], bool]] = {
    "as released": ({}, False),
    "free function": ({ENGINE: (CALL, FREE)}, False),
    "renamed method": (
        {
            ENGINE: (CALL, "        server_args.validate()\n"),
            ARGS: (METHOD, RENAMED + METHOD),
        },
        False,
    ),
    "assigned over": ({}, True),
}


def linked(folder: Path, edits: Mapping[str, tuple[str, str]]) -> Path:
    """The release's tree as links, with other texts for some files."""
    original, copy = tree(RELEASE), folder / "tree"
    link(original, copy, {Path("sglang") / rel for rel in edits})
    for rel, (old, new) in edits.items():
        text = (original / "sglang" / rel).read_text(encoding="utf-8")
        assert text.count(old) == 1, (rel, old)
        (copy / "sglang" / rel).write_text(text.replace(old, new), encoding="utf-8")
    return copy


def link(original: Path, copy: Path, but: set[Path]) -> None:
    copy.mkdir()
    for entry in original.iterdir():
        inside = {Path(*rel.parts[1:]) for rel in but if rel.parts[0] == entry.name}
        if entry.name == "__pycache__" or Path() in inside:
            continue
        if inside:
            link(entry, copy / entry.name, inside)
        else:
            (copy / entry.name).symlink_to(entry)


def environment(way: str, folder: Path) -> dict[str, str]:
    edits, late = WAYS[way]
    env = live_environment(RELEASE, SGLANG_GUARDS_TEST_GPU="4xH100")
    env["PYTHONPATH"] = env["PYTHONPATH"].replace(str(tree(RELEASE)), str(linked(folder, edits)))
    if late:
        env["SGLANG_PLUGINS"] += ",assigns_late"
        env["PYTHONPATH"] = os.pathsep.join([str(LATE), env["PYTHONPATH"]])
    return env


def run(command: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("way", WAYS)
def test_doctor_goes_the_launchers_way(way: str, tmp_path: Path) -> None:
    env = environment(way, tmp_path)
    env["SGLANG_PLUGINS"] = env["SGLANG_PLUGINS"].replace("sglang_guards_pose,", "")
    done = run(["-m", "sglang_guards", "doctor", "--format", "json"], env)
    found = json.loads(done.stdout)
    assert str(tmp_path) in found["sglang"]["path"]
    assert (found["active"], done.returncode) == ((True, 0) if way == "as released" else (False, 1)), found
    if way == "as released":
        assert found["trouble"] == ""
        assert not [note for note in found["notes"] if "workers" in note or "in the place" in note]
    else:
        assert "came to its workers without calling what is wrapped" in found["trouble"]
    named = [note for note in found["notes"] if "stands in the place of ServerArgs.check_server_args" in note]
    assert [note.split()[0] for note in named] == (["assigns_late.quiet"] if way == "assigned over" else [])


#: Real workers take half a minute each: in CI the one that must stay quiet and the one that only a worker can tell.
LAUNCHED = [
    way if way in ("as released", "assigned over") else pytest.param(way, marks=pytest.mark.slow)
    for way in WAYS
]


@pytest.mark.parametrize("way", LAUNCHED)
def test_a_worker_warns_where_its_launch_was_not_validated(way: str, tmp_path: Path) -> None:
    command = ["-m", "sglang.launch_server", "--model-path", QWEN3, "--tp", "1", "--load-format", "dummy"]
    done = run(command, environment(way, tmp_path))
    text = done.stdout + done.stderr
    assert "Scheduler hit an exception" in text, "the launch must get as far as a scheduler"
    warned = "sglang-guards: this launch was not validated" in text
    assert warned is (way != "as released"), text[-3000:]
    assert ("armed (enforce)" in text) is (way == "as released")

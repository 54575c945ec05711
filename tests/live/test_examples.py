"""The CI, Kubernetes and Docker examples, as far as they go without their engines: parsed, and their commands run."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from sglang_guards.cli.parser import parser
from tests.launches.checks import ROOT, environment

ACTION = ROOT / ".github" / "actions" / "check"
RELEASE = "0.5.15"
MODEL = str(ROOT / "examples" / "qwen3.5-122b-rtx-pro-6000")
SHA = re.compile(r"[\w-]+/[\w/.-]+@[0-9a-f]{40}")


def documents(path: str) -> list[Any]:
    return list(yaml.safe_load_all((ROOT / path).read_text(encoding="utf-8")))


def test_the_action_passes_each_input_as_a_variable() -> None:
    action = yaml.safe_load((ACTION / "action.yml").read_text(encoding="utf-8"))
    steps = action["runs"]["steps"]
    used = " ".join(value for step in steps for value in step.get("env", {}).values())
    assert [name for name in action["inputs"] if f"inputs.{name} }}}}" not in used] == []
    assert [step["run"] for step in steps if "${{" in step.get("run", "")] == []
    assert all(SHA.fullmatch(step["uses"]) for step in steps if "uses" in step)
    assert all(step["shell"] == "bash" for step in steps if "run" in step)
    script = (ACTION / "check.sh").read_text(encoding="utf-8")
    assert [name for name in steps[-1]["env"] if not re.search(rf"\$\{{?{name}\b", script)] == []
    assert os.access(ACTION / "check.sh", os.X_OK)


def test_the_workflow_gives_the_action_what_it_asks_for() -> None:
    (workflow,) = documents("examples/ci/check-launch.yml")
    steps = workflow["jobs"]["check"]["steps"]
    (ours,) = [step for step in steps if step["uses"].startswith("sglang-guards/")]
    inputs = yaml.safe_load((ACTION / "action.yml").read_text(encoding="utf-8"))["inputs"]
    assert set(ours["with"]) <= set(inputs)
    assert {name for name, about in inputs.items() if about.get("required")} <= set(ours["with"])
    assert ours["uses"].startswith("sglang-guards/sglang-guards/.github/actions/check@")


def action_run(tmp_path: Path, launch: str, **more: str) -> subprocess.CompletedProcess[str]:
    """check.sh as the runner starts it, with this Python environment for the one that it would have made."""
    venv = tmp_path / "venv" / "bin"
    venv.mkdir(parents=True)
    (venv / "python").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n', encoding="utf-8")
    (venv / "python").chmod(0o755)
    made = environment(RELEASE)
    trees = made.pop("PYTHONPATH").split(os.pathsep)[-1]
    env = made | {
        "PYTHONPATH": str(ROOT),
        "SGLANG_GUARDS_TREES": str(Path(trees).parent),
        "SGLANG_GUARDS_VENV": str(venv.parent),
        "SGLANG": RELEASE,
        "LAUNCH": launch,
        "GPU": "4xRTX-PRO-6000",
        "MODEL_CONFIG": MODEL,
        "FAIL_ON": "error",
        "LAUNCH_FILE": "",
        "SARIF": "",
    }
    return subprocess.run([ACTION / "check.sh"], env=env | more, cwd=tmp_path, capture_output=True, text=True)


@pytest.mark.live
def test_the_actions_script_annotates_and_fails(tmp_path: Path) -> None:
    launch = (
        "python -m sglang.launch_server --model-path a/b --tp 4 --ep-size 4 --enable-fused-moe-sum-all-reduce"
    )
    hostile = f"{launch} --served-model-name '$(touch ran)`touch ran`'"
    done = action_run(tmp_path, hostile, LAUNCH_FILE="deploy/launch.sh:3", SARIF="out.sarif")
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("::error file=deploy/launch.sh,line=3,title=FMS101 ")
    assert not (tmp_path / "ran").exists()
    log = json.loads((tmp_path / "out.sarif").read_text(encoding="utf-8"))
    assert log["runs"][0]["results"][0]["ruleId"] == "FMS101"


def kubernetes() -> tuple[dict[str, Any], dict[str, Any]]:
    config, deployment = documents("examples/kubernetes/sglang.yaml")
    return config, deployment["spec"]["template"]["spec"]


def test_kubernetes_checks_the_launch_that_it_starts() -> None:
    config, pod = kubernetes()
    (check,), (server,) = pod["initContainers"], pod["containers"]
    words = [*check["command"], *check["args"]]
    assert words[0] == "sglang-guards"
    cut = words.index("--")
    assert parser().parse_args(words[1:cut]).gpu == "4xRTX-PRO-6000"
    assert words[cut + 1 :] == server["command"]
    assert check["image"] == server["image"]
    mounts = {mount["name"] for mount in check["volumeMounts"]}
    assert mounts <= {volume["name"] for volume in pod["volumes"]}
    assert list(config["data"]) == ["launch.yaml"]


@pytest.mark.live
@pytest.mark.parametrize(
    ("more", "code"), [("", 0), ("enable-fused-moe-sum-all-reduce: true\nep-size: 4\n", 1)]
)
def test_kubernetes_init_container(more: str, code: int, tmp_path: Path) -> None:
    config, pod = kubernetes()
    text = config["data"]["launch.yaml"].replace("/models/Qwen3.5-122B-A10B-FP8", MODEL) + more
    (tmp_path / "launch.yaml").write_text(text, encoding="utf-8")
    (check,) = pod["initContainers"]
    words = [*check["command"][1:], *check["args"]]
    words = [word.replace("/launch/launch.yaml", str(tmp_path / "launch.yaml")) for word in words]
    command = [sys.executable, "-m", "sglang_guards", *words]
    done = subprocess.run(command, env=environment(RELEASE), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr


def test_dockerfile() -> None:
    text = (ROOT / "examples" / "docker" / "Dockerfile").read_text(encoding="utf-8")
    joined = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    steps = [line.split(maxsplit=1) for line in joined.splitlines() if line.strip()]
    assert [name for name, _ in steps] == ["ARG", "FROM", "ARG", "RUN", "ENV"]
    assert steps[1][1] == "lmsysorg/sglang:${SGLANG_TAG}"
    subprocess.run(["bash", "-n", "-c", steps[3][1]], check=True)
    from sglang_guards import __version__

    assert steps[2][1] == f"SGLANG_GUARDS={__version__}"

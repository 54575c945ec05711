"""Launch files: scripts, Slurm jobs, compose and Kubernetes YAML; what is found, what is said, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_guards.errors import CouldNotCheck
from sglang_guards.preflight import launch_file
from sglang_guards.preflight.command_line import Command

SERVER = "python3 -m sglang.launch_server --model-path /m"


def read(
    tmp_path: Path, name: str, text: str, env: dict[str, str] | None = None, nth: int | None = None
) -> Command:
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    return launch_file.read(file, env or {}, nth)


def test_a_script(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        "serve.sh",
        f"""#!/usr/bin/env bash
set -euo pipefail
export SGLANG_X=1
MODEL=${{MODEL:-/m}}   # the default
EXTRA=(--ep 4 --served-model-name "a b")
mkdir -p logs
nohup python3 -m sglang.launch_server \\
    --model-path "$MODEL" --tp 4 "${{EXTRA[@]}}" \\
    > logs/out 2>&1 &
echo $! > pid
{"#" * 3} {SERVER} --tp 8
""",
    )
    assert found.args == ("--model-path", "/m", "--tp", "4", "--ep", "4", "--served-model-name", "a b")
    assert dict(found.env) == {"SGLANG_X": "1"}
    assert found.notes[0].startswith(
        f"judged is the launch at line 7 of {tmp_path / 'serve.sh'}: SGLANG_X=1 nohup"
    )
    assert found.cut


def test_a_slurm_job(tmp_path: Path) -> None:
    text = f"""#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gres=gpu:h100:4
source ~/venv/bin/activate
srun --nodes=2 {SERVER} --tp 8 --nnodes $SLURM_NNODES --node-rank $SLURM_NODEID --dist-init-addr $HEAD:5000
"""
    found = read(tmp_path, "job.slurm", text, {"HOME": "/h"})
    assert found.args[4:] == ("--nnodes", "2", "--node-rank", "0", "--dist-init-addr", "$HEAD:5000")
    assert found.devices == "0,1,2,3"
    assert found.unknown == ("$HEAD",)
    assert "SLURM_NNODES" not in dict(found.env)
    assert any("source /h/venv/bin/activate" in note for note in found.notes)


COMPOSE = """
x-env: &env {HF_TOKEN: "${HF_TOKEN}", CUDA_VISIBLE_DEVICES: "0,1"}
services:
  db: {image: postgres, command: [postgres]}
  sglang:
    image: lmsysorg/sglang:${TAG:-v0.5.15}
    environment: *env
    volumes: ["/data/m:/m"]
    entrypoint: python3 -m sglang.launch_server
    command: >
      --model-path /m --tp ${TP:-4}
      --json-model-override-args '{"a b": 1}' --served-model-name $$x
    deploy: {resources: {reservations: {devices: [{driver: nvidia, count: 2, capabilities: [gpu]}]}}}
"""


def test_a_compose_file(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    found = read(tmp_path, "compose.yaml", COMPOSE)
    assert found.args == (
        *(
            "--model-path",
            "/m",
            "--tp",
            "4",
            "--json-model-override-args",
            '{"a b": 1}',
            "--served-model-name",
            "$x",
        ),
    )
    assert dict(found.env) == {"HF_TOKEN": "", "CUDA_VISIBLE_DEVICES": "0,1"}
    assert found.places == ("that of the image lmsysorg/sglang:v0.5.15",)
    assert (found.devices, found.mounts) == ("0,1", (("/m", "/data/m"),))
    assert any("HF_TOKEN is not set here" in note for note in found.notes)
    assert read(tmp_path, "compose.yaml", COMPOSE, {"TP": "8"}).args[3] == "8"


KUBERNETES = """
apiVersion: v1
kind: Service
---
apiVersion: apps/v1
kind: Deployment
spec:
  template:
    spec:
      containers:
      - name: side
        image: busybox
        command: [sleep, inf]
      - name: sglang
        image: lmsysorg/sglang:v0.5.15
        command: ["/bin/bash", "-c"]
        args:
        - |
          export SGLANG_X=1
          exec python3 -m sglang.launch_server --model-path $MODEL --tp $(TP) --api-key "$KEY"
        env:
        - {name: MODEL, value: /m}
        - {name: TP, value: "4"}
        - {name: KEY, valueFrom: {secretKeyRef: {name: a, key: b}}}
        resources: {limits: {nvidia.com/gpu: 4}}
"""


def test_kubernetes_yaml(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    found = read(tmp_path, "pod.yml", KUBERNETES)
    assert found.args == ("--model-path", "/m", "--tp", "4", "--api-key", "$KEY")
    assert dict(found.env) == {"MODEL": "/m", "TP": "4", "SGLANG_X": "1"}
    assert found.devices == "0,1,2,3"
    assert any("the value of KEY is not in the file" in note for note in found.notes)
    assert "of the container sglang of" in found.notes[0]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("two.sh", f"{SERVER} --tp 1\n{SERVER} --tp 2\n", "holds 2 launches, at lines 1, 2"),
        ("none.sh", "ls\necho a\n", "holds no launch of SGLang"),
        ("empty.sh", "", "is empty"),
        ("quote.sh", "echo 'a\n", "a single quote is not closed"),
        ("bad.yaml", "a: [", "is no YAML at line 1"),
        ("none.yaml", "a: 1", "holds no launch of SGLang"),
        ("image.yaml", "services: {a: {image: lmsysorg/sglang}}", "holds no launch of SGLang"),
        ("odd.yaml", "services: [1]\ncontainers: {a: 1}", "holds no launch of SGLang"),
        ("two.yaml", f"containers:\n- {{name: a, args: [{SERVER.replace(' ', ', ')}]}}\n" * 1, None),
        ("bytes.sh", "a\0b", "is no text"),
    ],
)
def test_what_is_not_one_launch_is_one_sentence(
    tmp_path: Path, name: str, text: str, says: str | None
) -> None:
    if says is None:
        assert read(tmp_path, name, text).args == ("--model-path", "/m")
        return
    with pytest.raises(CouldNotCheck) as caught:
        read(tmp_path, name, text)
    assert says in caught.value.message
    assert "\n" not in caught.value.message


def test_the_nth_of_several(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    two = KUBERNETES + "\n---\n" + KUBERNETES.replace("--tp $(TP)", "--tp 8")
    assert read(tmp_path, "two.yaml", two, nth=2).args[3] == "8"
    with pytest.raises(CouldNotCheck, match="holds 2 launches: the container sglang, the container sglang"):
        read(tmp_path, "two.yaml", two)
    with pytest.raises(CouldNotCheck, match="no launch number 3"):
        read(tmp_path, "two.yaml", two, nth=3)


def test_yaml_that_repeats_itself_a_billion_times_ends(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    lines = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    with pytest.raises(CouldNotCheck, match="holds no launch"):
        read(tmp_path, "bomb.yaml", "\n".join(lines))


def test_a_missing_file_and_a_line_behind_its_name(tmp_path: Path) -> None:
    with pytest.raises(CouldNotCheck, match="cannot be read"):
        launch_file.read(tmp_path / "none.sh", {})
    (tmp_path / "a.sh").write_text(SERVER, encoding="utf-8")
    assert launch_file.read(f"{tmp_path / 'a.sh'}:1", {}).args == ("--model-path", "/m")


def test_no_secret_of_a_file_is_shown(tmp_path: Path) -> None:
    found = read(tmp_path, "a.sh", f"KEY=S3cretS3cret\n{SERVER} --api-key $KEY --hf-token=S3cretS3cret\n")
    assert found.args[-2] == "S3cretS3cret"
    assert not any("S3cret" in note for note in found.notes)

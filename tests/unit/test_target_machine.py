"""Files, devices and hosts that only the machine that serves has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_guards.preflight import target_machine


def test_files_that_a_launch_names() -> None:
    given = {
        "model_path": "org/model",
        "ssl_keyfile": "/etc/tls/key",
        "lora_paths": ["a=/adapters/a", "/adapters/b"],
        "model_loader_extra_config": json.dumps({"pack_path": "/packs/one.bin", "threads": 8}),
        "chat_template": "chatml",
        "port": 30000,
    }
    assert target_machine.files_named(given, {"SGLANG_CONFIG": "tuned.json", "HOME": "/home/x"}) >= {
        "/etc/tls/key",
        "/adapters/a",
        "/adapters/b",
        "/packs/one.bin",
        "tuned.json",
    }
    assert "org/model" not in target_machine.files_named(given, {})
    assert "chatml" not in target_machine.files_named(given, {})
    assert "/home/x" not in target_machine.files_named(given, {"HOME": "/home/x"})


@pytest.mark.parametrize(
    ("value", "devices"),
    [
        ("mlx5_0, mlx5_1,mlx5_0", ("mlx5_0", "mlx5_1")),
        ('{"0": "mlx5_0", "1": "mlx5_2,mlx5_3"}', ("mlx5_0", "mlx5_2", "mlx5_3")),
        ("", ()),
    ],
)
def test_devices_that_a_launch_names(value: str, devices: tuple[str, ...]) -> None:
    assert target_machine.devices_named({"disaggregation_ib_device": value}, {}) == devices


def test_a_device_file_that_is_not_here_gets_a_stand_in(tmp_path: Path) -> None:
    values = {"disaggregation_ib_device": str(tmp_path / "none.json")}
    names = target_machine.stand_in_devices(values)
    assert names == {values["disaggregation_ib_device"]: str(tmp_path / "none.json")}
    (tmp_path / "here.json").write_text("{}")
    values = {"disaggregation_ib_device": str(tmp_path / "here.json")}
    assert target_machine.stand_in_devices(values) == {}


_POSE = """
import json, os, pathlib, socket, sys
from sglang_guards.preflight import target_machine
given = json.loads(sys.argv[1])
target_machine.take_for_granted(given, {}, ["--dist-init-addr", "head-node.example:5000"])
print(json.dumps({
    "named": [os.path.isfile("/no/key.pem"), os.path.exists("/no/key.pem"), pathlib.Path("/no/key.pem").is_file()],
    "other": [os.path.isfile("/no/other.pem"), os.path.exists("/no/other.pem"), pathlib.Path("/no/other").exists()],
    "folder": os.path.isdir("/no/key.pem"),
    "infiniband": [os.path.isdir("/sys/class/infiniband"), sorted(os.listdir("/sys/class/infiniband"))],
    "host": socket.getaddrinfo("head-node.example", 5000)[0][4][0],
}))
try:
    open("/no/key.pem")
except OSError:
    print("its content is not made up")
"""


def test_a_process_that_takes_them_for_granted() -> None:
    given = json.dumps({"ssl_keyfile": "/no/key.pem", "disaggregation_ib_device": "mlx5_0,mlx5_1"})
    done = subprocess.run(
        [sys.executable, "-c", _POSE, given], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    first, last = done.stdout.splitlines()
    answer = json.loads(first)
    assert answer["named"] == [True, True, True]
    assert answer["other"] == [False, False, False]
    assert answer["folder"] is False
    assert answer["infiniband"] == [True, ["mlx5_0", "mlx5_1"]]
    assert answer["host"]
    assert last == "its content is not made up"

"""What a command sets for itself: GPUs, interpreter, PYTHONPATH, mounted models."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sglang_guards.errors import CouldNotCheck
from sglang_guards.launch import gpus
from sglang_guards.preflight import command_line, surroundings
from sglang_guards.source import Source

SERVE = ["sglang", "serve", "/m"]


def tree(root: Path, version: str) -> Source:
    """A folder that Python would take for that version of SGLang."""
    (root / "sglang" / "srt").mkdir(parents=True)
    (root / "sglang" / "__init__.py").touch()
    (root / f"sglang-{version}.dist-info").mkdir()
    return Source(root / "sglang")


@pytest.mark.parametrize(
    ("value", "left"),
    [
        ("0,1", 2),
        ("0", 1),
        ("7,3,1", 3),
        ("0,-1,2", 1),
        ("0,8,1", 1),
        ("GPU-a,GPU-b", 2),
        ("0,1,2,3,4,5,6,7", 8),
    ],
)
def test_visible_devices(value: str, left: int) -> None:
    command = command_line.parse([f"CUDA_VISIBLE_DEVICES={value}", *SERVE])
    gpu, notes = surroundings.visible_gpus(gpus.parse("8xH200"), command, {})
    assert gpu.count == left
    assert notes == (
        [] if left == 8 else [f"CUDA_VISIBLE_DEVICES={value} leaves the launch {left} of 8 GPUs"]
    )


@pytest.mark.parametrize("value", ["", "-1", "0,0"])
def test_no_device_at_all(value: str) -> None:
    command = command_line.parse([f"CUDA_VISIBLE_DEVICES={value}", *SERVE])
    with pytest.raises(CouldNotCheck, match="leaves this launch no GPU"):
        surroundings.visible_gpus(gpus.parse("8xH200"), command, {})


def test_this_machines_own_setting_is_not_the_targets() -> None:
    base = {"CUDA_VISIBLE_DEVICES": "0"}
    gpu, notes = surroundings.visible_gpus(gpus.parse("8xH200"), command_line.parse(SERVE, base), base)
    assert (gpu.count, notes) == (8, [])


@pytest.mark.parametrize("name", ["ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"])
def test_rocm(name: str) -> None:
    command = command_line.parse([f"{name}=0,1", *SERVE])
    assert surroundings.visible_gpus(gpus.parse("8xMI300X"), command, {})[0].count == 2
    assert surroundings.visible_gpus(gpus.parse("8xH200"), command, {})[0].count == 8


def test_pythonpath_decides_which_sglang_is_judged(tmp_path: Path) -> None:
    tree(tmp_path, "9.9.9")
    command = command_line.parse([f"PYTHONPATH=/none:{tmp_path}", "python", "-m", "sglang.launch_server"])
    found, notes = surroundings.judged_source(command, {})
    assert (found.root, found.version) == (tmp_path / "sglang", "9.9.9")
    assert notes == [f"judged is SGLang 9.9.9, which PYTHONPATH={tmp_path} starts"]


def test_another_interpreter_is_said(tmp_path: Path) -> None:
    judged = tree(tmp_path / "judged", "1.0.0")
    other = tmp_path / "other"
    (other / "bin").mkdir(parents=True)
    (other / "bin" / "python").symlink_to(sys.executable)
    (other / "pyvenv.cfg").touch()
    tree(other / "lib" / "python3.11" / "site-packages", "2.0.0")

    def said(*words: str) -> list[str]:
        return surroundings.other_sglang(
            command_line.parse([*words, "-m", "sglang.launch_server"]), {}, judged
        )

    assert said("python") == []
    assert said(sys.executable) == []
    assert "another SGLang than the one judged: that of /no/bin/python, not here" in said("/no/bin/python")[0]
    assert "2.0.0 in" in said(str(other / "bin" / "python"))[0]
    assert "2.0.0 in" in said(f"PATH={other / 'bin'}", "python")[0]
    assert "the conda environment sg" in said("conda", "run", "-n", "sg", "python")[0]
    image = ("docker", "run", "lmsysorg/sglang:v1.0.0", "python")
    assert said(*image) == []
    assert (
        "image lmsysorg/sglang:v1.0.0.post1"
        in said(*(w.replace(":v1.0.0", ":v1.0.0.post1") for w in image))[0]
    )


def test_a_mounted_model_is_read_on_this_side(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").touch()
    run = ["docker", "run", "-v", f"{tmp_path}:/models", "i", "sglang", "serve"]
    assert surroundings.mounted_config(command_line.parse([*run, "/models/m"])) == tmp_path / "m"
    assert surroundings.mounted_config(command_line.parse([*run, "--model-path=/models/m"])) == tmp_path / "m"
    assert surroundings.mounted_config(command_line.parse([*run, "/modelsx/m"])) is None
    assert surroundings.mounted_config(command_line.parse([*run, "/other"])) is None

"""The table of simulated GPUs and how it is asked."""

from __future__ import annotations

import pytest

from sglang_guards.errors import CouldNotCheck
from sglang_guards.launch import gpus


@pytest.mark.parametrize(
    ("typed", "sm", "count", "name"),
    [
        ("4xH100", 90, 4, "NVIDIA H100 80GB HBM3"),
        ("8xh200", 90, 8, "NVIDIA H200"),
        ("8xH20", 90, 8, "NVIDIA H20"),
        ("4xB200", 100, 4, "NVIDIA B200"),
        ("8xB300", 103, 8, "NVIDIA B300 SXM6 AC"),
        ("4xGB300", 103, 4, "NVIDIA GB300"),
        ("4xRTX-PRO-6000", 120, 4, "NVIDIA RTX PRO 6000 Blackwell Server Edition"),
        ("4 x rtx pro 6000", 120, 4, "NVIDIA RTX PRO 6000 Blackwell Server Edition"),
        ("1xNVIDIA_GeForce_RTX_5090", 120, 1, "NVIDIA GeForce RTX 5090"),
        ("1xGB10", 121, 1, "NVIDIA GB10"),
        ("4xL40S", 89, 4, "NVIDIA L40S"),
        ("8xA100", 80, 8, "NVIDIA A100-SXM4-80GB"),
    ],
)
def test_nvidia(typed: str, sm: int, count: int, name: str) -> None:
    gpu = gpus.parse(typed)
    assert (gpu.platform, gpu.sm, gpu.count, gpu.name) == ("cuda", sm, count, name)


@pytest.mark.parametrize(
    ("typed", "arch"), [("8xMI300X", "gfx942"), ("8xmi325x", "gfx942"), ("4xAMD Instinct MI355X", "gfx950")]
)
def test_amd(typed: str, arch: str) -> None:
    gpu = gpus.parse(typed)
    assert (gpu.platform, gpu.sm, gpu.arch) == ("hip", None, arch)


@pytest.mark.parametrize(
    "typed", ["4xFOO", "H100", "x4", "0xH100", "-1xH100", "4x", "", "999xH100", "fourxH100"]
)
def test_what_is_not_known_is_one_sentence(typed: str) -> None:
    with pytest.raises(CouldNotCheck) as caught:
        gpus.parse(typed)
    assert "--gpu" in caught.value.message
    assert caught.value.hint


def test_a_near_name_is_suggested() -> None:
    with pytest.raises(CouldNotCheck) as caught:
        gpus.parse("4xMI355")
    assert "MI355X" in caught.value.hint


@pytest.mark.parametrize(
    ("typed", "said"),
    [("a100-40gb", "8xA100-40GB"), ("2x8xH200", "--nnodes"), ("4xRTX PRO 600", "RTX-PRO-6000")],
)
def test_hints_spell_names_as_people_do(typed: str, said: str) -> None:
    with pytest.raises(CouldNotCheck) as caught:
        gpus.parse(typed)
    assert said in caught.value.hint


def test_every_entry_is_found_by_its_own_name() -> None:
    for key, gpu in gpus.TABLE.items():
        assert gpus.parse(f"2x{key}").name == gpu.name
        assert gpus.parse(f"2x{gpus.spelled(key)}").name == gpu.name
        assert gpu.memory_gib > 10
        assert gpu.units > 0
        assert (gpu.sm is None) == (gpu.platform == "hip") == bool(gpu.arch)


def test_a_machine_without_a_gpu_says_to_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(gpus, "_from_torch", lambda: None)
    with pytest.raises(CouldNotCheck) as caught:
        gpus.detect()
    assert "--gpu" in caught.value.hint

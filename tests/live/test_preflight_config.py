"""--config files, and doctor in a fresh process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.live.preflight_cases import LAUNCH, cli, example, run

pytestmark = pytest.mark.live


def test_values_from_a_yaml_file_are_checked_and_corrected(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("ep-size: 4\nenable-fused-moe-sum-all-reduce: true\napi-key: yamlsecret\n")
    case = {**example(), "argv": [*LAUNCH[:-1], "--config", str(file)]}
    for release in ("0.5.15", "0.5.20"):
        (report,) = run(release, [case])
        assert [f["id"] for f in report["findings"] if f["severity"] == "error"] == ["FMS101"]
        assert report["launch"]["facts"]["args.ep_size"] == {"value": 4, "from": "given"}
        assert report["corrected"] == case["argv"]
        assert any("remove enable-fused-moe-sum-all-reduce from it" in note for note in report["notes"])
        assert "yamlsecret" not in json.dumps(report)


def test_doctor_without_the_entry_point_says_so() -> None:
    done = cli("0.5.15", "doctor", "--format", "json")
    found = json.loads(done.stdout)
    assert found["sglang"]["version"] == "0.5.15"
    assert found["sglang"]["plugins"] is True
    assert (done.returncode == 0) == found["active"] == (found["entry_point"] is not None)


def test_doctor_proves_that_the_hook_fires(tmp_path: Path) -> None:
    info = tmp_path / "sglang_guards-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang-guards\nVersion: 0\n")
    (info / "entry_points.txt").write_text(
        "[sglang.srt.plugins]\nsglang_guards = sglang_guards.plugin:register\n"
    )
    from tests.live.preflight_cases import environment

    path = f"{tmp_path}:{environment('0.5.20')['PYTHONPATH']}"
    done = cli("0.5.20", "doctor", PYTHONPATH=path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("ACTIVE")
    left_out = cli("0.5.20", "doctor", PYTHONPATH=path, SGLANG_PLUGINS="another")
    assert left_out.returncode == 1
    assert "SGLANG_PLUGINS=another leaves sglang_guards out" in left_out.stdout

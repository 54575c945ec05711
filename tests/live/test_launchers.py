"""Real launchers as subprocesses: a bad launch is refused with our text last, a good one passes resolution."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.live.runs import FLAG, QWEN3, launched
from tests.trees import PLUGIN_RELEASES, running

RELEASES = running("launchers", PLUGIN_RELEASES)
SERVER = ["-m", "sglang.launch_server"]
SERVE = ["-c", "import sys; from sglang.cli.main import main; sys.argv[0] = 'sglang'; main()", "serve"]
BASE = ["--model-path", QWEN3, "--tp", "4"]
BAD = [*BASE, FLAG, "--enable-deterministic-inference"]

ENGINE = """
import sglang as sgl
from sglang_guards.errors import LaunchRefused
if __name__ == "__main__":
    try:
        sgl.Engine({arguments})
    except ValueError as error:
        assert isinstance(error, LaunchRefused), error
        print("CAUGHT", error.report.errors[0].id)
"""
KEYWORDS = f"model_path={QWEN3!r}, tp_size=4, enable_fused_moe_sum_all_reduce=True, enable_deterministic_inference=True"


def last_line(text: str) -> str:
    return [line for line in text.splitlines() if line.strip()][-1]


@pytest.mark.live
@pytest.mark.parametrize("release", RELEASES)
def test_launch_server_refuses(release: str) -> None:
    code, text = launched(release, [*SERVER, *BAD])
    assert code == 1, text[-3000:]
    assert "error[FMS104]" in text
    assert last_line(text).startswith("FAIL")
    assert text.count("LaunchRefused") == 1


@pytest.mark.live
@pytest.mark.parametrize("release", ["0.5.15", "0.5.23"])
def test_sglang_serve_refuses(release: str) -> None:
    code, text = launched(release, [*SERVE, *BAD])
    assert code == 1, text[-3000:]
    assert "error[FMS104]" in text
    assert last_line(text).startswith("FAIL")


@pytest.mark.live
@pytest.mark.parametrize("release", RELEASES)
def test_a_good_launch_goes_on_to_the_workers(release: str) -> None:
    _, text = launched(release, [*SERVER, *BASE, "--load-format", "dummy"])
    assert "sglang-guards 0.1.0 armed (enforce)" in text, text[-3000:]
    assert "LaunchRefused" not in text
    assert "Scheduler hit an exception" in text, "the launch must get as far as a scheduler"


@pytest.mark.live
@pytest.mark.parametrize("release", ["0.5.15", "0.5.23"])
@pytest.mark.parametrize("how", ["keywords", "object"])
def test_engine_raises_something_to_catch(release: str, how: str, tmp_path: Path) -> None:
    made = KEYWORDS if how == "keywords" else f"server_args=__import__('sglang').ServerArgs({KEYWORDS})"
    script = tmp_path / "engine.py"
    script.write_text(ENGINE.format(arguments=made), encoding="utf-8")
    if how == "object" and release == "0.5.15":
        # Built before the plugins load, so before the pose: it resolves as a CPU machine with nothing to refuse.
        pytest.skip("0.5.15 resolves the object at construction, before any plugin can pose a GPU")
    code, text = launched(release, [str(script)])
    assert code == 0, text[-3000:]
    assert "CAUGHT FMS104" in text


@pytest.mark.live
def test_fix_mode_goes_on(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    _, text = launched("0.5.23", [*SERVER, *BAD], SGLANG_GUARDS="fix", SGLANG_GUARDS_REPORT=str(report))
    assert "enable_fused_moe_sum_all_reduce True -> False" in text, text[-3000:]
    assert "LaunchRefused" not in text
    assert oct(os.stat(report).st_mode & 0o777) == "0o600"

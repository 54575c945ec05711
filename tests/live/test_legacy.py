"""SGLang 0.5.10, which has no plugin framework: the drop-in launcher and the .pth hook, in real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from sglang_guards.legacy import PTH_NAME, PTH_TEXT
from tests.launches.checks import ROOT, environment
from tests.live.runs import FLAG, QWEN3, SITE

RELEASE = "0.5.10.post1"
POSED = """
import os, sys, tempfile
from pathlib import Path
from sglang_guards.launch import gpus
from sglang_guards.preflight import simulated_gpu as pose
tools = Path(tempfile.mkdtemp())
pose.write_tools(tools)
os.environ["PATH"] = f"{{tools}}:{{os.environ['PATH']}}"
pose.hide(); pose.warm_up()
import sglang.srt.entrypoints.http_server
pose.strike(gpus.parse("4xH100"))
sys.argv = ["x", "--model-path", {model!r}, "--tp", "4", {flag!r}, "--enable-deterministic-inference"]
{start}
"""
WRAPPER = "from sglang_guards import launch_server; launch_server.main()"
PLAIN = "import runpy; runpy.run_module('sglang.launch_server', run_name='__main__', alter_sys=True)"


def run(python: str, start: str, **more: str) -> tuple[int, str]:
    env = environment(RELEASE, **more)
    env["PYTHONPATH"] = f"{SITE}{os.pathsep}{env['PYTHONPATH']}"
    script = POSED.format(model=QWEN3, flag=FLAG, start=start)
    done = subprocess.run(
        [python, "-c", script],
        env=env,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout


def refused(text: str) -> bool:
    return "error[FMS104]" in text and text.rstrip().splitlines()[-1].startswith("FAIL")


@pytest.mark.live
def test_the_drop_in_launcher_refuses() -> None:
    code, text = run(sys.executable, WRAPPER)
    assert code == 1, text[-3000:]
    assert refused(text), text[-3000:]


@pytest.mark.live
def test_the_drop_in_launcher_respects_off() -> None:
    _, text = run(sys.executable, WRAPPER, SGLANG_GUARDS="off")
    assert "FMS104" not in text


@pytest.fixture
def fresh_venv(tmp_path: Path) -> Path:
    """A virtual environment of its own that sees this one's packages."""
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    site = tmp_path / "venv" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    ours = next(p for p in sys.path if p.endswith("site-packages"))
    (site / "chain.pth").write_text(f"import site; site.addsitedir({ours!r})\n", encoding="utf-8")
    return python


def legacy_hook(python: Path, action: str) -> str:
    env = environment(RELEASE)
    command = [str(python), "-m", "sglang_guards", "legacy-hook", action]
    return subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.live
def test_the_pth_hook_is_installed_used_and_removed(fresh_venv: Path) -> None:
    assert "wrote" in legacy_hook(fresh_venv, "install")
    assert "in place" in legacy_hook(fresh_venv, "install")
    code, text = run(str(fresh_venv), PLAIN)
    assert code == 1, text[-3000:]
    assert refused(text), text[-3000:]
    assert "removed" in legacy_hook(fresh_venv, "remove")
    assert "not there" in legacy_hook(fresh_venv, "remove")
    assert not list(fresh_venv.parent.parent.rglob(PTH_NAME))


def test_the_pth_line_is_one_line_that_imports_nothing_of_ours() -> None:
    assert PTH_TEXT.count("\n") == 1
    assert PTH_TEXT.startswith("import sys; ")
    tell = "import sys\nprint([m for m in sys.modules if m == 'sglang_guards.legacy'], len(sys.meta_path))\n"
    twice = _isolated(PTH_TEXT * 2 + tell)
    assert twice.startswith("[]")
    assert int(twice.split()[-1]) == int(_isolated(tell).split()[-1]) + 1, "run twice, it is there once"


def _isolated(script: str) -> str:
    return subprocess.run(
        [sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True
    ).stdout

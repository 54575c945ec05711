"""The run-time fix on every release: Triton sees the changed line, the interpreter computes with it, nothing breaks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trees import FLAG_RELEASES, NEWEST, RELEASES, running, tree

pytestmark = pytest.mark.live

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import importlib, inspect, json, logging, sys
logging.basicConfig(level=logging.INFO)
import sglang
from sglang_guards.hook import hotfix
if sys.argv[1] == "after":
    early = None
else:
    early = hotfix.apply({hotfix.VARIABLE: sys.argv[2]})
name, path = hotfix._installed()
try:
    importlib.import_module(name)
except ImportError as error:  # 0.5.10's package goes on to import a GPU library, after this module
    assert "sgl_kernel" in str(error), error
module = sys.modules[name]
if sys.argv[1] == "after":
    early = hotfix.apply({hotfix.VARIABLE: sys.argv[2]})
kernel = module.fused_moe_kernel
source = getattr(kernel, "src", None) or inspect.getsource(kernel.fn)
import linecache
linecache.checkcache()
again = "".join(inspect.getsourcelines(kernel.fn)[0])
print(json.dumps({"said": early, "kind": type(kernel).__name__, "relaxed": hotfix.NEW in source,
                  "old": hotfix.OLD in source, "still": hotfix.NEW in again, "helper": "write_zeros" in source,
                  "line": kernel.fn.__code__.co_firstlineno, "file": str(path)}))
"""


def _run(
    release: Path, when: str, what: str = "relaxed-atomics", interpret: bool = False
) -> tuple[dict[str, object], str]:
    import json

    env = dict(os.environ, PYTHONPATH=f"{ROOT}{os.pathsep}{release}", HF_HUB_OFFLINE="1")
    env.pop("TRITON_INTERPRET", None)
    if interpret:
        env["TRITON_INTERPRET"] = "1"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, when, what], capture_output=True, text=True, env=env, timeout=120
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


#: One release for each place of the kernel, and the ends of the range; the rest are slow tests.
QUICK = running("hotfix")


@pytest.mark.parametrize(
    "release", [r if r in QUICK else pytest.param(r, marks=pytest.mark.slow) for r in FLAG_RELEASES]
)
def test_triton_compiles_the_changed_line(release: str) -> None:
    seen, log = _run(tree(release), "before")
    assert "relaxed-atomics" in str(seen["said"])
    assert seen["kind"] == "JITFunction"
    assert seen["relaxed"]
    assert not seen["old"]
    assert seen["still"], "linecache forgot the changed text"
    assert seen["helper"]
    assert "adds with relaxed order" in log
    assert "NOT" not in log


@pytest.mark.parametrize("when", ["before", "after"])
def test_it_works_before_and_after_the_import_and_in_the_interpreter(when: str) -> None:
    seen, _ = _run(tree(NEWEST), when, interpret=True)
    assert seen["kind"] == "InterpretedFunction"
    assert seen["relaxed"]


def test_an_unknown_name_changes_nothing_and_says_so() -> None:
    seen, log = _run(tree(NEWEST), "before", "faster-please")
    assert seen["said"] is None
    assert seen["old"]
    assert "is not known" in log


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (
            lambda text, old: text.replace(old, old.replace("c_mask)", 'c_mask, sem="relaxed")')),
            "relaxed order already",
        ),
        (lambda text, old: text + f"\n# {old}\n", "expected one line"),
        (lambda text, old: text.replace(old, "pass"), "expected one line"),
    ],
    ids=["fixed already", "twice", "gone"],
)
def test_anything_but_one_exact_line_is_left_alone(tmp_path: Path, edit, says: str) -> None:  # type: ignore[no-untyped-def]
    from sglang_guards.hook import hotfix

    real = tree(NEWEST).joinpath(*hotfix.MODULES[0].split(".")).with_suffix(".py")
    path = tmp_path.joinpath(*hotfix.MODULES[0].split(".")).with_suffix(".py")
    path.parent.mkdir(parents=True)
    (tmp_path / "sglang" / "__init__.py").touch()
    path.write_text(edit(real.read_text(), hotfix.OLD))
    code = "import logging, sys; logging.basicConfig(); from sglang_guards.hook import hotfix; "
    code += "before = list(sys.meta_path); said = hotfix.apply({hotfix.VARIABLE: hotfix.NAME}); "
    code += "assert said is None, said; assert sys.meta_path == before"
    env = dict(os.environ, PYTHONPATH=f"{ROOT}{os.pathsep}{tmp_path}")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=60)
    assert done.returncode == 0, done.stderr
    assert says in done.stderr


def test_a_release_without_the_flag_gets_a_warning() -> None:
    seen, log = _run(tree(RELEASES[0]), "before")
    assert seen["said"] is None
    assert "not applied" in log


def test_nothing_is_asked_for_nothing_is_done() -> None:
    from sglang_guards.hook import hotfix

    assert hotfix.apply({}) is None

"""The run-time fix gives the same results as the default, compiles to relaxed order, and reaches the patched speed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.gpu

SCRIPT = """
import json, logging, sys
logging.basicConfig(level=logging.INFO)
import sglang
from sglang_guards.hook import hotfix
said = hotfix.apply({"SGLANG_GUARDS_HOTFIX": sys.argv[1]} if sys.argv[1] != "none" else {})
import importlib, torch
from sglang_guards.bench import kernels, layer, process, timing
from sglang_guards.bench.shapes import MoeShape
process.set_up()
sequence, kernel = (importlib.import_module(n) for n in kernels.names(kernels.root()))
weights = layer.Weights(MoeShape("test", 64, 256, 4096, 8, "bf16"))
batch = layer.Batch(weights, 4096)
kernels.set_flag(sequence, False)
plain = batch.call(sequence).clone()
off = timing.interleaved({"x": lambda: batch.call(sequence)}, rounds=9, cold=True)["x"].us
kernels.set_flag(sequence, True)
fused = batch.call(sequence)
on = timing.interleaved({"x": lambda: batch.call(sequence)}, rounds=9, cold=True)["x"].us
ptx = [k.asm["ptx"] for c in kernel.fused_moe_kernel.device_caches.values() for k in c[0].values()]
print(json.dumps({"said": said, "difference": layer.relative(fused, plain), "off": off, "on": on,
                  "relaxed": any("relaxed.add.noftz" in p or "red.relaxed" in p for p in ptx),
                  "acq_rel": any("acq_rel.add" in p for p in ptx)}))
"""


def _run(hotfix: str) -> dict[str, object]:
    done = subprocess.run([sys.executable, "-c", SCRIPT, hotfix], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_hotfix_keeps_results_and_gains_speed() -> None:
    plain, fixed = _run("none"), _run("relaxed-atomics")
    print(plain, fixed)
    assert plain["said"] is None
    assert plain["acq_rel"]
    assert "relaxed" in str(fixed["said"])
    assert fixed["relaxed"]
    assert not fixed["acq_rel"]
    assert float(str(fixed["difference"])) < 0.01
    # Not a timed test of small margins: as shipped the kernel is some 15–40 % slower at this size.
    assert float(str(fixed["on"])) < 0.95 * float(str(plain["on"]))

"""SGLang reads the files that `sglang-guards bench --tune` writes: its down projection takes their tile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trees import tree

pytestmark = pytest.mark.live

ROOT = Path(__file__).resolve().parents[2]
STAND_INS = Path(__file__).resolve().parent / "site"
SCRIPT = """
import json, os, sys
from pathlib import Path
from sglang_guards.bench import process, tune
from sglang_guards.bench.shapes import MoeShape
process.set_up()
config = tune._config_module()
config.get_device_name = lambda: "NVIDIA H200"
shape = MoeShape("x", 128, 384, 4096, 8, sys.argv[1])
args = ((128, 768, 4096), (128, 4096, 384), 8, "fp8_w8a8" if sys.argv[1] == "fp8" else None, 2048)
more = {"block_shape": [128, 128] if sys.argv[1] == "fp8" else None, "return_down_config": True}
before, _ = config.try_get_optimal_moe_config(*args, **more)
tile = dict(before, BLOCK_SIZE_N=64, num_stages=2)
counts = [1, 2, 3, 5, 16, 24, 33, 64, 96, 100, 128, 200, 300, 512, 700, 1024, 1500, 3000, 6000, 9000, 20000, 70000]
def ups():
    found = [config.try_get_optimal_moe_config(*args[:4], count, **more)[0] for count in counts]
    return [{k: v for k, v in up.items() if v is not None} for up in found]
stock = ups()
written = tune.write(Path(sys.argv[2]), shape, {2048: tile})
os.environ["SGLANG_MOE_CONFIG_DIR"] = sys.argv[2]
config.get_moe_configs.cache_clear()
up, (down, _) = config.try_get_optimal_moe_config(*args, **more)
print(json.dumps({"same_up": up == before, "down": down == tile, "written": [p.name for p in written],
                  "read_again": [a == b for a, b in zip(ups(), stock)]}))
"""


@pytest.mark.parametrize("dtype", ["fp8", "bf16"])
@pytest.mark.parametrize("release", ["0.5.12", "0.5.15", "0.5.23"])
def test_the_down_projection_takes_the_written_tile(release: str, dtype: str, tmp_path: Path) -> None:
    paths = [str(ROOT), str(STAND_INS), str(tree(release))]
    env = dict(os.environ, HF_HUB_OFFLINE="1", PYTHONPATH=os.pathsep.join(paths))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, dtype, str(tmp_path)],
        capture_output=True, text=True, env=env, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    # Up to 0.5.12 SGLang asserts for each token count that both files name the same row block: none of these raised.
    assert len(found["read_again"]) == 22
    if dtype == "fp8":  # a file of SGLang's own is carried over whole
        assert all(found["read_again"])
    assert found["same_up"]
    assert found["down"]
    assert len(found["written"]) == 2
    assert all(name.startswith("E=128,N=384,device_name=NVIDIA_H200") for name in found["written"])
